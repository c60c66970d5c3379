"""Memory for an engine's outputs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trtkit.network.decoder import FINAL_HIDDEN_STATES, NEXT_HIDDEN_STATES
from trtkit.network.speculators import NEXT_DRAFT_HIDDEN
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from trtkit.llm.sequences import Ints
    from trtkit.runtime.device import Stream
    from trtkit.runtime.loaded_engine import EngineTensor


class OutputMemory:
    """Memory for logits or a pipeline stage's hidden states, and for the hidden states that a draft head reads.

    outputs: the engine's, by name. main: name of the first of these. has_all_logits: whether calls return logits of
    every token.
    """

    def __init__(self, stream: Stream, outputs: Mapping[str, EngineTensor], *, has_all_logits: bool) -> None:
        self.main = "logits" if "logits" in outputs else NEXT_HIDDEN_STATES
        self.has_all_logits = has_all_logits or self.main == NEXT_HIDDEN_STATES
        self._stream = stream
        names = (self.main, NEXT_DRAFT_HIDDEN, FINAL_HIDDEN_STATES)
        self._outputs = {name: outputs[name] for name in names if name in outputs}
        self._arrays: dict[str, torch.Tensor] = {}
        self._joined: dict[str, torch.Tensor] = {}

    @property
    def vocab_size(self) -> int:
        """Size of the main output's last axis."""
        size: int = self._outputs[self.main].shape[-1]
        return size

    def reserve(self, room: int, slots: int, *, is_joined: bool) -> None:
        """Allocate for calls of `room` new tokens. is_joined: whether groups of rows may run one after the other."""
        self._arrays = {name: self._empty(name, room, slots) for name in self._outputs}
        self._joined = {name: self._empty(name, room, slots) for name in self._outputs} if is_joined else {}

    def addresses(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the address at which the engine writes each output."""
        yield from self._arrays.items()

    def flat(self, rows: int) -> torch.Tensor:
        """Return the main output of a decode step, [R, V]."""
        return self._arrays[self.main][:rows]

    def join(self, members: Ints, rows: int, size: int) -> None:
        """Copy a group's outputs, of `rows` rows with padding, to its rows of the whole call."""
        for name in self._outputs:
            part = self._shaped(self._arrays, name, rows, size)[: len(members)]
            self._stream.run(partial(_put, self._joined[name], members, size, part))

    def of(self, name: str, rows: int, size: int, *, is_joined: bool) -> torch.Tensor | None:
        """Return an output of a call of R rows and S new tokens as [R, S, V], or as [R, V] of each row's last token."""
        if name not in self._outputs:
            return None
        return self._shaped(self._joined if is_joined else self._arrays, name, rows, size)

    def _shaped(self, arrays: Mapping[str, torch.Tensor], name: str, rows: int, size: int) -> torch.Tensor:
        array = arrays[name]
        return array[: rows * size].view(rows, size, -1) if self._is_of_all(name) else array[:rows]

    def _is_of_all(self, name: str) -> bool:
        return self.has_all_logits if name == self.main else len(self._outputs[name].shape) == 3

    def _empty(self, name: str, room: int, slots: int) -> torch.Tensor:
        output = self._outputs[name]
        return self._stream.empty((room if self._is_of_all(name) else slots, output.shape[-1]), output.dtype)


def _put(target: torch.Tensor, rows: Ints, size: int, values: torch.Tensor) -> None:
    if values.dim() == 3:
        target = target[: target.shape[0] // size * size].view(-1, size, values.shape[-1])
    target[to_device(rows, target.device)] = values
