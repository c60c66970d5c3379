"""Blocks of cached tokens in host memory and files, by key: which rows of the memory hold them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trtkit.llm.cache.held_blocks import ChangeLog
from trtkit.llm.cache.host.store import HostStore
from trtkit.llm.cache.transfers import AwaitBlocks, FillRows, LoadBlocks, SaveBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.cache.held_blocks import Block
    from trtkit.llm.cache.host.files import FileTier
    from trtkit.llm.cache.host.link import Link
    from trtkit.llm.cache.transfers import Transfer

_MOST_UNWRITTEN = 0.25  # share of the memory for blocks that wait to be written to files


class Arrival(NamedTuple):
    """A pending load: its number, and its expected arrival."""

    number: int
    due_s: float


@dataclass(eq=False)
class _Unwritten:
    """Blocks to be written to files. has_come: tells whether they are in host memory; None until they are saved."""

    save: SaveBlocks
    keys: Sequence[bytes]
    has_come: Callable[[], bool] | None = None


class BlockTier:
    """As many blocks as `limit_bytes` hold, at least one. Copies are appended to `transfers`.

    tokens, size_bytes: of a block. link: over which blocks are copied. files: where blocks are also written, and found
    after the memory has dropped them. rows: of the memory. filled: data read from files for rows, until it is written
    there. changes: the blocks in memory.
    """

    def __init__(
        self,
        tokens: int,
        size_bytes: int,
        limit_bytes: int,
        files: FileTier | None,
        transfers: list[Transfer],
        link: Link,
    ) -> None:
        self.tokens, self.size_bytes = tokens, size_bytes
        self._files, self._transfers, self._link = files, transfers, link
        self.rate = link.rate
        self._loads = self._awaited = 0
        self.rows = limit_bytes // size_bytes
        self.filled: dict[int, bytes] = {}
        self._free: list[int] = []
        self._taken = 0  # rows that were ever used
        self._unwritten: deque[_Unwritten] = deque()
        self._kept: dict[bytes, Block] = {}
        self.changes = ChangeLog(lambda: ((key, [block]) for key, block in self._kept.items()))
        self.store = HostStore[int](self.rows * size_bytes, self._drop)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to find."""
        return not len(self.store) and not (self._files is not None and len(self._files))

    def holds(self, key: bytes) -> bool:
        """Whether a block can be loaded."""
        return key in self.store or self._is_in_file(key)

    def keep(self, blocks: Sequence[Block], places: Sequence[int], most: int | None = None) -> None:
        """Save blocks that the host does not have, as far as there is room, starting with a sequence's first.

        most: limit on their number; None if unlimited.
        """
        store, keys = self.store, [block.key for block in blocks]
        retained = store.retain(keys)
        new: list[bytes] = []
        new_places: list[int] = []
        for block, position in zip(blocks, places, strict=True):
            key = block.key
            if key in store:
                continue
            if len(new) == most or self._take_row(block) is None:
                break
            retained += store.retain([key])
            new.append(key)
            new_places.append(position)
        if new:
            save = SaveBlocks(tuple(new_places), tuple(store.get(key) for key in new))
            self._transfers.append(save)
            self._link.begin(len(new) * self.size_bytes, is_save=True)
            if self._files is not None:
                self._unwritten.append(_Unwritten(save, store.retain(new)))
        store.release(retained)
        store.touch(keys)

    def find(self, blocks: Sequence[Block], first: int, least: int) -> tuple[list[bytes], int]:
        """Return and retain a sequence's consecutive blocks on the host from `first` on, if at least `least`.

        Blocks that only files have are read immediately: whether a file is intact decides how much is found. Also
        returns how many were read.
        """
        stop = first
        while stop < len(blocks) and self.holds(blocks[stop].key):
            stop += 1
        retained: list[bytes] = []
        read: list[int] = []
        if stop - first >= least:
            for block in blocks[first:stop]:
                if block.key not in self.store:
                    if not self._read(block):
                        break
                    read.append(self.store.get(block.key))
                retained += self.store.retain([block.key])
        if read:
            self._transfers.append(FillRows(tuple(read)))
        if len(retained) >= least:
            return retained, len(read)
        self.store.release(retained)
        return [], 0

    def copied_bytes(self, blocks: Sequence[Block]) -> int:
        """Return the bytes to copy out, for blocks that the host does not have, and back in, for all of them."""
        return (len(blocks) + sum(block.key not in self.store for block in blocks)) * self.size_bytes

    def load(self, keys: Sequence[bytes], places: Sequence[int]) -> Arrival | None:
        """Copy blocks to their places in the caches; return the pending load, None if it is done at once."""
        due_s, number = self._link.begin(len(keys) * self.size_bytes), 0
        if self._link.is_background:
            number = self._loads = self._loads + 1
        self._transfers.append(LoadBlocks(tuple(self.store.get(key) for key in keys), tuple(places), number))
        self.store.touch(keys)
        return Arrival(number, due_s) if number else None

    def await_load(self, arrival: Arrival) -> None:
        """Make the next call wait for a load, and for all earlier loads."""
        if arrival.number > self._awaited:
            self._awaited = arrival.number
            self._transfers.append(AwaitBlocks(arrival.number))

    def has_room(self, blocks: Sequence[Block]) -> bool:
        """Whether all these blocks could be retained at once."""
        missing = sum(not self.store.is_retained(block.key) for block in blocks)
        return self.store.retained_bytes + missing * self.size_bytes <= self.store.limit_bytes

    def note_saved(self, save: SaveBlocks, has_come: Callable[[], bool]) -> None:
        """Record that blocks are being saved. has_come: tells whether they have arrived."""
        for unwritten in self._unwritten:
            if unwritten.save is save:
                unwritten.has_come = has_come

    def write(self, data_of: Callable[[int], bytes]) -> None:
        """Write blocks that have reached the host to files; those that have waited too long are skipped.

        data_of: returns a row's bytes.
        """
        files = self._files
        while files is not None and self._unwritten:
            first = self._unwritten[0]
            waiting = sum(len(unwritten.keys) for unwritten in self._unwritten) * self.size_bytes
            if first.has_come is not None and first.has_come():
                for key in first.keys:
                    files.put(self._kept[key].preimage, self.tokens, data_of(self.store.get(key)))
            elif waiting <= _MOST_UNWRITTEN * self.store.limit_bytes:
                return
            self._unwritten.popleft()
            self.store.release(first.keys)

    def _is_in_file(self, key: bytes) -> bool:
        return self._files is not None and key in self._files

    def _read(self, block: Block) -> bool:
        """Read a block from its file into a row; return False if it cannot be read or there is no room."""
        data = None if self._files is None else self._files.read(block.key)
        if data is None or len(data) != self.size_bytes:
            return False
        row = self._take_row(block)
        if row is None:
            return False
        self.filled[row] = data
        return True

    def _take_row(self, block: Block) -> int | None:
        """Return the row for a new block; None if retained blocks leave no room."""
        if not self.store.make_room(self.size_bytes):
            return None
        if self._free:
            row = self._free.pop()
        else:
            row, self._taken = self._taken, self._taken + 1
        self.store.put(block.key, self.size_bytes, self.tokens, row)
        self._kept[block.key] = block
        self.changes.note_held(block.key, lambda: [block])
        return row

    def _drop(self, key: bytes, row: int) -> None:
        self._free.append(row)
        del self._kept[key]
        self.changes.note_lost(key)
