"""Keys and values of sequences: the memory, and everything that is done with it between calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from trtkit.errors import ExecutionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trtkit.network.input_spec import InputSpec
    from trtkit.runtime.device import Stream


@dataclass(frozen=True, eq=False)
class SavedSequence:
    """The cached tokens of a sequence on the host. arrays: [K, tokens, H] by cache."""

    tokens: int
    arrays: Mapping[str, torch.Tensor]


class KvCache:
    """Linear caches: each sequence has a slot of its own at full length, allocated once and never moved.

    specs: the network's inputs, of which the caches are taken. stream: of a device, which works on them in turn; None:
    the caller's own memory and time.
    slots: sequences. max_length: T, tokens that a slot holds.
    """

    def __init__(
        self,
        specs: Iterable[InputSpec],
        slots: int,
        dtype_of: Callable[[InputSpec], torch.dtype],
        stream: Stream | None = None,
    ) -> None:
        self.specs = [spec for spec in specs if spec.feeder == "cache"]
        self.slots, self.max_length = slots, self.specs[0].size_of("cached_tokens")
        self._stream, empty = stream, _empty if stream is None else stream.empty
        self._arrays = {spec.name: empty((slots, *spec.shape[1:]), dtype_of(spec)) for spec in self.specs}
        for array in self._arrays.values():
            self._run(array.zero_)

    def view(self, rows: slice) -> dict[str, torch.Tensor]:
        """Return the caches [R, K, T, H] of neighbouring slots, by the input that takes them."""
        return {name: array[rows] for name, array in self._arrays.items()}

    def append(self, first_slot: int, starts: torch.Tensor, new: Mapping[str, torch.Tensor]) -> None:
        """Write new keys and values [R, K, S, H] into slots from `first_slot` on, each row's at its start.

        starts: [R] int64. All places are tensors where the caches are, so that a CUDA graph can hold this.
        """
        device = starts.device
        rows = torch.arange(first_slot, first_slot + len(starts), device=device)[:, None, None]
        for name, values in new.items():
            heads = torch.arange(values.shape[1], device=device)[None, :, None]
            places = (starts[:, None] + torch.arange(values.shape[2], device=device))[:, None, :]
            array = self._arrays[name]
            _codes(array)[rows, heads, places] = _codes(values.to(array.dtype))

    def copy(self, source: int, target: int, tokens: slice) -> None:
        """Copy cached tokens of slot `source` to slot `target`."""
        for array in self._arrays.values():
            self._run(partial(array[target, :, tokens].copy_, array[source, :, tokens]))

    def share(self, source: int, target: int, count: int) -> None:
        """Let `target` begin with the first `count` tokens of `source`; linear slots each hold their own copy."""
        if source != target:
            self.copy(source, target, slice(0, count))

    def save(self, slot: int, count: int) -> SavedSequence:
        """Return the first `count` tokens of a slot, copied to the host."""
        self._check(count)
        if self._stream is not None:
            self._stream.synchronize()
        arrays = {name: array[slot, :, :count].to("cpu", copy=True) for name, array in self._arrays.items()}
        return SavedSequence(count, arrays)

    def load(self, slot: int, saved: SavedSequence) -> None:
        """Begin a slot with a saved sequence. Raises ExecutionError for one of other caches, or of too many tokens."""
        self._check(saved.tokens)
        if fault := self._fault(saved):
            raise ExecutionError(fault, "KV cache", "load a cache that the same engine saved")
        for name, array in saved.arrays.items():
            part = self._arrays[name][slot, :, : saved.tokens]
            self._run(partial(part.copy_, array))

    def close(self) -> None:
        """Give the memory back."""
        self._arrays.clear()

    def _run(self, work: Callable[[], object]) -> None:
        """Do `work` in turn with everything else that is done with the caches."""
        if self._stream is None:
            work()
        else:
            self._stream.run(work)

    def _check(self, count: int) -> None:
        """Raise ExecutionError for more tokens than a slot holds."""
        if count > self.max_length:
            what = f"a slot of {self.max_length} tokens cannot hold {count}"
            raise ExecutionError(what, "KV cache", "raise `llm.max_sequence_length`, or give fewer tokens")

    def _fault(self, saved: SavedSequence) -> str:
        """Say how a saved sequence differs from what the caches hold; empty if it does not."""
        if saved.arrays.keys() != self._arrays.keys():
            return f"the saved sequence has {len(saved.arrays)} caches, the model {len(self._arrays)} of other names"
        for name, array in self._arrays.items():
            want, have = (array.shape[1], saved.tokens, array.shape[3]), tuple(saved.arrays[name].shape)
            if have != want or saved.arrays[name].dtype != array.dtype:
                own = f"{list(have)} in {saved.arrays[name].dtype}"
                return f"the saved `{name}` is {own}, the model's is {list(want)} in {array.dtype}"
        return ""


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the caller's own memory."""
    return torch.empty(*shape, dtype=dtype)


def _codes(array: torch.Tensor) -> torch.Tensor:
    """Return values in eight bits as integers, which torch can scatter."""
    return array.view(torch.int8) if array.dtype.itemsize == 1 else array
