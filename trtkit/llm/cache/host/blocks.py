"""Blocks of cached tokens in host memory, and in files, by their keys."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtkit.llm.cache.host.store import CopyRate, HostStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.cache.host.files import FileTier
    from trtkit.llm.execution.host_blocks import CacheBlocks

_MOST_UNWRITTEN = 0.25  # of the memory: blocks that stay until they are in files
_CHUNK = 64  # blocks that are written at once at the end


class _Unwritten(NamedTuple):
    has_come: Callable[[], bool]
    keys: Sequence[bytes]


class BlockTier:
    """As many blocks as `limit_bytes` hold, at least one, in memory that is taken once.

    files: where blocks are written too, and found when the memory has them no longer. clock: gives the time in seconds.
    """

    def __init__(
        self,
        blocks: CacheBlocks,
        limit_bytes: int,
        files: FileTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks, self._files, self._clock = blocks, files, clock
        self.rate = CopyRate()
        count = limit_bytes // blocks.size_bytes
        self._memory = blocks.memory(count)
        self._free: list[int] = []
        self._taken = 0  # rows that were ever used
        self._unwritten: deque[_Unwritten] = deque()
        self.store = HostStore[int](count * blocks.size_bytes, self._drop)

    @property
    def tokens(self) -> int:
        """Tokens of a block."""
        return self._blocks.tokens

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to find."""
        return not len(self.store) and not (self._files is not None and len(self._files))

    def holds(self, key: bytes) -> bool:
        """Whether a block can be brought back."""
        return key in self.store or self._is_in_file(key)

    def places(self, slot: int, first: int, count: int) -> list[int]:
        """Return where the caches have a slot's blocks."""
        return self._blocks.places(slot, first, count)

    def keep(self, keys: Sequence[bytes], places: Sequence[int]) -> None:
        """Copy blocks to the host that it does not have, as far as there is room, from the first of a sequence on."""
        store = self.store
        retained, new, new_places = store.retain(keys), [], []
        for key, place in zip(keys, places, strict=True):
            if key in store:
                continue
            if self._take_row(key) is None:
                break
            retained += store.retain([key])
            new.append(key)
            new_places.append(place)
        if new:
            started_s, rows = self._clock(), [self._memory[store.get(key)] for key in new]
            has_come = self._blocks.save(new_places, rows)
            if self._blocks.is_waited_for:
                self.rate.note(self._clock() - started_s, len(new) * self._blocks.size_bytes)
            if self._files is not None:
                self._unwritten.append(_Unwritten(has_come, store.retain(new)))
        store.release(retained)
        store.touch(keys)
        self.write()

    def keep_all(self, keys: Sequence[bytes], places: Sequence[int]) -> None:
        """Have all of these blocks in files, however little memory there is."""
        for start in range(0, len(keys), _CHUNK):
            part = slice(start, start + _CHUNK)
            self.keep(keys[part], places[part])
            self.flush()

    def find(self, keys: Sequence[bytes], first: int, least: int) -> tuple[list[bytes], int]:
        """Return a sequence's blocks that are kept from `first` on, and retain them, if they are at least `least`.

        Those that only files have are read. Return, too, how many that were.
        """
        stop = first
        while stop < len(keys) and self.holds(keys[stop]):
            stop += 1
        retained: list[bytes] = []
        read = 0
        if stop - first >= least:
            for key in keys[first:stop]:
                if key not in self.store:
                    if not self._read(key):
                        break
                    read += 1
                retained += self.store.retain([key])
        if len(retained) >= least:
            return retained, read
        self.store.release(retained)
        return [], 0

    def copied_bytes(self, keys: Sequence[bytes]) -> int:
        """Return the bytes to copy out, of those blocks that the host does not have, and back, of all of them."""
        if (measured := self._blocks.last_copy()) is not None:
            self.rate.note(*measured)
        return (len(keys) + sum(key not in self.store for key in keys)) * self._blocks.size_bytes

    def load(self, keys: Sequence[bytes], places: Sequence[int]) -> None:
        """Copy blocks that are kept to their places in the caches."""
        self._blocks.load(places, [self._memory[self.store.get(key)] for key in keys])
        self.store.touch(keys)

    def has_room(self, keys: Sequence[bytes]) -> bool:
        """Whether all these blocks could be retained at once."""
        missing = sum(not self.store.is_retained(key) for key in keys)
        return self.store.retained_bytes + missing * self._blocks.size_bytes <= self.store.limit_bytes

    def write(self) -> None:
        """Give the files those blocks that have come to the host; those that wait for too long are left out."""
        files = self._files
        while files is not None and self._unwritten:
            has_come, keys = self._unwritten[0]
            waiting = sum(len(each.keys) for each in self._unwritten) * self._blocks.size_bytes
            if has_come():
                for key in keys:
                    files.put(key, self.tokens, self._memory[self.store.get(key)].numpy().tobytes())
            elif waiting <= _MOST_UNWRITTEN * self.store.limit_bytes:
                return
            self._unwritten.popleft()
            self.store.release(keys)

    def flush(self) -> None:
        """Give the files all that they do not have."""
        self._blocks.settle()
        self.write()

    def _is_in_file(self, key: bytes) -> bool:
        return self._files is not None and key in self._files

    def _read(self, key: bytes) -> bool:
        """Bring a block from its file into memory; return whether it could be read, and there is room."""
        data = None if self._files is None else self._files.read(key)
        if data is None or len(data) != self._blocks.size_bytes:
            return False
        row = self._take_row(key)
        if row is None:
            return False
        self._blocks.settle()
        self._memory[row].numpy()[:] = np.frombuffer(data, np.uint8)
        return True

    def _take_row(self, key: bytes) -> int | None:
        """Return the row for a new block; None if retained blocks leave no room."""
        if not self.store.make_room(self._blocks.size_bytes):
            return None
        if self._free:
            row = self._free.pop()
        else:
            row, self._taken = self._taken, self._taken + 1
        self.store.put(key, self._blocks.size_bytes, row)
        return row

    def _drop(self, _key: bytes, row: int) -> None:
        self._free.append(row)
