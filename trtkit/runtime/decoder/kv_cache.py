"""Keys and values of sequences: the memory, and everything that is done with it between calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from trtkit.runtime.decoder.saved import CacheArray, CacheForm, SavedSequence, check_saved, check_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trtkit.network.input_spec import InputSpec
    from trtkit.runtime.device import Stream


class KvCache:
    """Linear caches: each sequence has a slot of its own at full length, allocated once and never moved.

    specs: the network's inputs, of which the caches are taken. stream: of a device, which works on them in turn; None:
    the caller's own memory and time.
    slots: sequences. max_length: T, tokens that a slot holds. model: digest of the model whose keys and values these
    are; saved sequences of other models are refused.
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
        self.model = ""
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

    def form(self, tokens: int) -> CacheForm:
        """Return what a saved sequence of `tokens` tokens is."""
        arrays = (
            CacheArray(name, str(array.dtype).removeprefix("torch."), array.shape[1], array.shape[3])
            for name, array in self._arrays.items()
        )
        return CacheForm(self.model, tokens, tuple(arrays))

    def save(self, slot: int, count: int) -> SavedSequence:
        """Return the first `count` tokens of a slot, copied to the host."""
        check_tokens(count, self.max_length)
        if self._stream is not None:
            self._stream.synchronize()
        form = self.form(count)
        saved = SavedSequence(form, torch.zeros(form.size_bytes, dtype=torch.uint8))
        for name, view in form.views(saved.data).items():
            view.copy_(self._arrays[name][slot, :, :count])
        return saved

    def load(self, slot: int, saved: SavedSequence) -> None:
        """Begin a slot with a saved sequence. Raises ExecutionError for what `check` refuses."""
        self.check(saved)
        for name, view in saved.form.views(saved.data).items():
            part = self._arrays[name][slot, :, : saved.tokens]
            self._run(partial(part.copy_, view))

    def check(self, saved: SavedSequence) -> None:
        """Raise ExecutionError for a sequence of another model or other caches, of too many tokens or too few bytes."""
        check_saved(saved, self.form(saved.tokens), self.max_length)

    def close(self) -> None:
        """Give the memory back."""
        self._arrays.clear()

    def _run(self, work: Callable[[], object]) -> None:
        """Do `work` in turn with everything else that is done with the caches."""
        if self._stream is None:
            work()
        else:
            self._stream.run(work)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the caller's own memory."""
    return torch.empty(*shape, dtype=dtype)


def _codes(array: torch.Tensor) -> torch.Tensor:
    """Return values in eight bits as integers, which torch can scatter."""
    return array.view(torch.int8) if array.dtype.itemsize == 1 else array
