"""Copies of cached blocks to host memory and back while the engine computes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from trtkit.llm.cache.host.link import STAGED_BYTES
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.llm.execution.saved import CacheForm
    from trtkit.runtime.device import Event, Stream

_BUFFERS = 4  # some are filled while others are drained
_STAGED_BYTES = STAGED_BYTES // _BUFFERS


class CacheBlocks(Protocol):
    """Caches of `tokens` consecutive tokens of all layers, as blocks of `size_bytes` bytes with a number each."""

    tokens: int
    size_bytes: int

    def last_copy(self) -> tuple[float, int] | None:
        """Return the seconds and bytes of the last copy to the host, once, if the device has measured them."""
        ...

    @property
    def is_waited_for(self) -> bool:
        """Whether `save` and `load` return only when everything has been copied."""
        ...

    def places(self, slot: int, first: int, count: int) -> list[int]:
        """Return the numbers of a slot's blocks, from its block `first` on."""
        ...

    def save(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """Copy blocks to host memory, each [size_bytes] uint8; return a function that tells whether that is done.

        Whatever overwrites the blocks or loads the rows next waits for the copy if necessary.
        """
        ...

    def load(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Copy blocks from host memory; return a function that makes the device's next work, not the host, wait.

        Until then, only other copies, or callers of `settle`, may change the rows.
        """
        ...

    def settle(self) -> None:
        """Wait until no copy uses the given rows any more."""
        ...

    def memory(self, count: int) -> torch.Tensor:
        """Return host memory for `count` blocks, [count, size_bytes] uint8."""
        ...


class LocalBlocks:
    """A CacheBlocks of one rank.

    form: of one block. arrays: linear ones [slots, K, blocks, tokens, H], or pools [P, K, tokens, H], by name. stream:
    of a device, which copies on another stream meanwhile; None if the caches are in host memory themselves.
    """

    def __init__(
        self,
        form: CacheForm,
        arrays: Mapping[str, torch.Tensor],
        stream: Stream | None,
        table: Array | None = None,
    ) -> None:
        self.tokens, self.size_bytes = form.tokens, form.size_bytes
        self._form, self._arrays, self._stream, self._table = form, arrays, stream, table
        self._blocks_of_slot = 1 if table is not None else next(iter(arrays.values())).shape[2]
        count = next(iter(arrays.values())).shape[0] * self._blocks_of_slot
        self._staged = max(1, min(_STAGED_BYTES // self.size_bytes, -(-count // _BUFFERS)))  # blocks of a buffer
        if stream is not None:
            self._copies = stream.sibling()
            shape = (self._staged, self.size_bytes)
            self._buffers = [stream.empty(shape, torch.uint8) for _ in range(_BUFFERS)]
            self._free: list[Event | None] = [None] * _BUFFERS
            self._turn = 0
            self._loaded = stream.empty(shape, torch.uint8)  # for loads, which follow each other on one stream
        self._timed: tuple[Event, Event, int] | None = None

    def last_copy(self) -> tuple[float, int] | None:
        """Return the duration of the last copy to the host; see CacheBlocks."""
        if self._timed is None or not self._timed[1].is_past():
            return None
        (begin, end, size), self._timed = self._timed, None
        seconds = end.seconds_after(begin)
        return None if seconds is None else (seconds, size)

    @property
    def is_waited_for(self) -> bool:
        """Whether the caches are in host memory themselves."""
        return self._stream is None

    def places(self, slot: int, first: int, count: int) -> list[int]:
        """Return the numbers of a slot's blocks: pages, or indices over all slots."""
        if self._table is not None:
            pages: list[int] = self._table[slot, first : first + count].tolist()
            return pages
        start = slot * self._blocks_of_slot + first
        return list(range(start, start + count))

    def save(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """Copy blocks to host memory; see CacheBlocks."""
        stream = self._stream
        if stream is None:
            staged = torch.empty(len(positions), self.size_bytes, dtype=torch.uint8)
            self._pack(positions, staged)
            _copy(staged, rows)
            return lambda: True
        for start in range(0, len(positions), self._staged):
            part = slice(start, start + self._staged)
            buffer = self._buffer(len(positions[part]), stream)
            stream.run(partial(self._pack, positions[part], buffer))
            self._copies.wait(stream.record())
            begin = self._copies.record()
            self._copies.run(partial(_copy, buffer, rows[part]))
            self._free[self._turn] = end = self._copies.record()
            self._timed = begin, end, buffer.nbytes
        return self._copies.record().is_past

    def load(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Copy blocks from host memory; see CacheBlocks."""
        stream = self._stream
        if stream is None:
            self._unpack(positions, torch.stack(list(rows)))
            return lambda: None
        self._copies.wait(stream.record())  # earlier reads and writes of these blocks
        for start in range(0, len(positions), self._staged):
            part = slice(start, start + self._staged)
            buffer = self._loaded[: len(positions[part])]
            self._copies.run(partial(_copy, rows[part], buffer))
            self._copies.run(partial(self._unpack, positions[part], buffer))
        loaded = self._copies.record()

        def arrive() -> None:
            stream.wait(loaded)

        return arrive

    def settle(self) -> None:
        """Wait until no copy uses the given rows any more."""
        if self._stream is not None:
            self._copies.synchronize()

    def memory(self, count: int) -> torch.Tensor:
        """Return host memory for `count` blocks."""
        size = count * self.size_bytes
        memory = torch.empty(size, dtype=torch.uint8) if self._stream is None else self._stream.host_memory(size)
        return memory.view(count, self.size_bytes)

    def _buffer(self, count: int, user: Stream) -> torch.Tensor:
        """Return the next buffer for the stream `user`, which waits until the buffer is free."""
        self._turn = (self._turn + 1) % _BUFFERS
        free = self._free[self._turn]
        if free is not None:
            user.wait(free)
        return self._buffers[self._turn][:count]

    def _pack(self, positions: Sequence[int], buffer: torch.Tensor) -> None:
        """Copy blocks into `buffer` [N, size_bytes]."""
        index = self._index(positions, buffer.device)
        for name, view in self._form.block_views(buffer).items():
            view.copy_(self._arrays[name][index])

    def _unpack(self, positions: Sequence[int], buffer: torch.Tensor) -> None:
        """Copy blocks from `buffer` [N, size_bytes] into the caches."""
        index = self._index(positions, buffer.device)
        for name, view in self._form.block_views(buffer).items():
            self._arrays[name][index] = view

    def _index(self, positions: Sequence[int], device: torch.device) -> tuple[torch.Tensor | slice, ...]:
        numbers = np.array(positions, np.int64)
        if self._table is not None:
            return (to_device(numbers, device),)
        slots, blocks = (to_device(part, device) for part in divmod(numbers, self._blocks_of_slot))
        return slots, slice(None), blocks


def _copy(sources: Sequence[torch.Tensor] | torch.Tensor, targets: Sequence[torch.Tensor] | torch.Tensor) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=True)
