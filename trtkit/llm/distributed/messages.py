"""Rank 0's messages to the others, as bytes of safetensors, which are safe to read from another process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from safetensors.torch import load, save

from trtkit.llm.cache import PageCopies
from trtkit.llm.execution.call import Call, CallPages
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.soft_tokens import SoftTokens
from trtkit.network.input_spec import LOGIT_INDEX

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")
MessageName = Literal[
    "close",
    "forward",
    "packed",
    "check",
    "time",
    "carry_out",
    "save",
    "load",
    "move",
    "mark",
    "rewind",
    "table",
    "save_blocks",
    "load_blocks",
    "write_adapter",
    "erase_adapter",
]
"""What rank 0 does with its own network, caches and adapters, and tells the others to do with theirs."""
_HEAD = "head"
_SOFT_FIELDS = ("places", "keys", "rope_positions", "ends")


@dataclass(frozen=True, eq=False)
class Message:
    """An instruction to every rank, with numbers, arrays and other JSON data by name."""

    name: MessageName
    fields: Mapping[str, object] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Return a number."""
        value = self.fields[name]
        assert isinstance(value, int)
        return value

    def numbers(self, name: str) -> list[int]:
        """Return a list of numbers."""
        values = self.fields[name]
        assert isinstance(values, Sequence)
        return list(values)

    def data(self) -> torch.Tensor:
        """Return the message as bytes [N] uint8."""
        text = json.dumps([self.name, dict(self.fields)], default=int)  # JSON does not know NumPy's integers
        head = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        return torch.frombuffer(bytearray(save({_HEAD: head, **tensors})), dtype=torch.uint8)

    @classmethod
    def read(cls, data: torch.Tensor) -> Message:
        """Return the message that `data` encoded."""
        tensors = load(data.numpy().tobytes())
        name, fields = json.loads(tensors.pop(_HEAD).numpy().tobytes())
        return cls(name, fields, tensors)


class CallWriter:
    """Turns calls into messages. The vectors of a prompt are sent once."""

    def __init__(self) -> None:
        self._sent: dict[int, SoftTokens] = {}

    def message(self, name: MessageName, call: Call) -> Message:
        """Return a call as a message, with those vectors of its slots that were not sent yet."""
        assert call.tree is None  # only draft heads guess trees, and they work on one rank
        tensors = {part: torch.from_numpy(getattr(call, part)) for part in ("ids", "starts", "counts")}
        fields: dict[str, object] = {"first_slot": call.first_slot}
        if call.scattered is not None:
            tensors["scattered"] = torch.from_numpy(call.scattered)
        if call.pages is not None:
            tensors["table"] = torch.from_numpy(call.pages.table)
            if call.pages.groups is not None:
                tensors["groups"] = torch.from_numpy(call.pages.groups)
            fields |= {"page_tokens": call.pages.page_tokens, **call.pages.copies._asdict()}
        if call.adapters is not None:
            tensors["adapters"] = torch.from_numpy(call.adapters)
        slots = set(call.slots.tolist())
        of_rows = {slot: soft for slot, soft in call.soft.items() if slot in slots}
        for slot, soft in of_rows.items():
            if self._sent.get(slot) is not soft:
                self._sent[slot] = soft
                tensors |= {f"{slot}.{part}": value for part, value in _soft_tensors(soft).items()}
        return Message(name, {**fields, "soft_slots": list(of_rows)}, tensors)

    def packed(self, packed: PackedCall) -> Message:
        """Return a packed call as a message."""
        fields: dict[str, object] = {}
        tensors = {LOGIT_INDEX: torch.from_numpy(packed.logit_index)}
        for part in _PARTS:
            message = self.message("packed", getattr(packed, part))
            fields |= {f"{part}.{name}": value for name, value in message.fields.items()}
            tensors |= {f"{part}.{name}": value for name, value in message.tensors.items()}
        return Message("packed", fields, tensors)


_PARTS = ("decode", "prompts")


class CallReader:
    """Turns messages into calls, with the vectors that came with earlier messages."""

    def __init__(self) -> None:
        self._soft: dict[int, SoftTokens] = {}

    def call(self, message: Message) -> Call:
        """Return a message's call."""
        slots = message.numbers("soft_slots")
        ids, starts, counts = (message.tensors[name].numpy() for name in ("ids", "starts", "counts"))
        for slot in slots:
            if f"{slot}.vectors" in message.tensors:
                self._soft[slot] = _soft_tokens(message.tensors, slot)
        soft = {slot: self._soft[slot] for slot in slots}
        adapters = message.tensors["adapters"].numpy() if "adapters" in message.tensors else None
        scattered = message.tensors["scattered"].numpy() if "scattered" in message.tensors else None
        first_slot, pages = message.number("first_slot"), _pages(message)
        return Call(first_slot, ids, starts, counts, soft, pages=pages, scattered=scattered, adapters=adapters)

    def packed(self, message: Message) -> PackedCall:
        """Return a message's packed call."""
        decode, prompts = (self.call(_part(message, part)) for part in _PARTS)
        return PackedCall(decode, prompts, message.tensors[LOGIT_INDEX].numpy())


def _part(message: Message, part: str) -> Message:
    """Return the fields whose names start with a part's prefix, as a message."""
    return Message(message.name, _named(message.fields, f"{part}."), _named(message.tensors, f"{part}."))


def _named(values: Mapping[str, T], prefix: str) -> dict[str, T]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _pages(message: Message) -> CallPages | None:
    tensors = message.tensors
    if "table" not in tensors:
        return None
    copies = PageCopies(message.numbers("sources"), message.numbers("targets"))
    groups = tensors["groups"].numpy() if "groups" in tensors else None
    return CallPages(tensors["table"].numpy(), message.number("page_tokens"), copies, groups)


def _soft_tensors(soft: SoftTokens) -> dict[str, torch.Tensor]:
    arrays = {name: getattr(soft, name) for name in _SOFT_FIELDS}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
    return {"vectors": soft.vectors, **tensors}


def _soft_tokens(tensors: Mapping[str, torch.Tensor], slot: int) -> SoftTokens:
    arrays = {name: tensors.get(f"{slot}.{name}") for name in _SOFT_FIELDS}
    indices, keys, positions, ends = (None if array is None else array.numpy() for array in arrays.values())
    assert indices is not None
    assert keys is not None
    return SoftTokens(indices, tensors[f"{slot}.vectors"], keys, positions, ends)
