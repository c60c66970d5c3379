"""What rank 0 tells the others, as bytes: safetensors, since they come from another process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, auto
from itertools import chain
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load, save

from trtkit.llm.cache import PageCopies
from trtkit.llm.execution.call import Call, CallPages
from trtkit.llm.soft_tokens import SoftTokens

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD = "head"
_SOFT_FIELDS = ("places", "keys", "rope_positions", "ends")


class Command(IntEnum):
    """What every rank is to do."""

    CLOSE = auto()
    FORWARD = auto()
    CHECK = auto()
    TIME = auto()
    COPY = auto()
    SAVE = auto()
    LOAD = auto()
    MOVE = auto()
    MARK = auto()
    REWIND = auto()
    TABLE = auto()
    SAVE_BLOCKS = auto()
    LOAD_BLOCKS = auto()
    ADAPT = auto()
    FORGET = auto()


@dataclass(frozen=True, eq=False)
class Message:
    """A command with its numbers and arrays."""

    command: Command
    numbers: tuple[int, ...] = ()
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def data(self) -> torch.Tensor:
        """Return it as bytes [N] uint8."""
        head = torch.tensor([self.command, *self.numbers])
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        return torch.frombuffer(bytearray(save({_HEAD: head, **tensors})), dtype=torch.uint8)

    @classmethod
    def read(cls, data: torch.Tensor) -> Message:
        """Return what `data` made bytes of."""
        tensors = load(data.numpy().tobytes())
        command, *numbers = tensors.pop(_HEAD).tolist()
        return cls(Command(command), tuple(numbers), tensors)


class CallWriter:
    """Calls as messages. The vectors of a prompt are sent once."""

    def __init__(self) -> None:
        self._sent: dict[int, SoftTokens] = {}

    def message(self, command: Command, call: Call) -> Message:
        """Return a call as a message, with the vectors of its slots that were not sent yet."""
        assert call.tree is None  # heads, which alone guess trees, work on one rank
        tensors = {name: torch.from_numpy(getattr(call, name)) for name in ("ids", "starts", "counts")}
        rows = call.rows
        if call.pages is not None:
            tensors["table"] = torch.from_numpy(call.pages.table)
            if call.pages.groups is not None:
                tensors["groups"] = torch.from_numpy(call.pages.groups)
            tensors["copies"] = torch.tensor([call.pages.page_tokens, *chain(*call.pages.copies)])
        if call.adapters is not None:
            tensors["adapters"] = torch.from_numpy(call.adapters)
        of_rows = {slot: soft for slot, soft in call.soft.items() if rows.start <= slot < rows.stop}
        for slot, soft in of_rows.items():
            if self._sent.get(slot) is not soft:
                self._sent[slot] = soft
                tensors |= {f"{slot}.{name}": value for name, value in _soft_tensors(soft).items()}
        return Message(command, (call.first_slot, *of_rows), tensors)


class CallReader:
    """Messages as calls, with the vectors that came with earlier ones."""

    def __init__(self) -> None:
        self._soft: dict[int, SoftTokens] = {}

    def call(self, message: Message) -> Call:
        """Return the call of a message."""
        first_slot, *slots = message.numbers
        ids, starts, counts = (message.tensors[name].numpy() for name in ("ids", "starts", "counts"))
        for slot in slots:
            if f"{slot}.vectors" in message.tensors:
                self._soft[slot] = _soft_tokens(message.tensors, slot)
        soft = {slot: self._soft[slot] for slot in slots}
        adapters = message.tensors["adapters"].numpy() if "adapters" in message.tensors else None
        return Call(first_slot, ids, starts, counts, soft, pages=_pages(message.tensors), adapters=adapters)


def _pages(tensors: Mapping[str, torch.Tensor]) -> CallPages | None:
    if "table" not in tensors:
        return None
    page_tokens, *copies = tensors["copies"].tolist()
    half = len(copies) // 2
    groups = tensors["groups"].numpy() if "groups" in tensors else None
    return CallPages(tensors["table"].numpy(), page_tokens, PageCopies(copies[:half], copies[half:]), groups)


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
