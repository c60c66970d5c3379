"""Blocks of cached tokens in host memory, by their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.runtime.host_cache.store import HostStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.runtime.decoder.host_blocks import CacheBlocks


class BlockTier:
    """As many blocks as `limit_bytes` hold, at least one, in memory that is taken once."""

    def __init__(self, blocks: CacheBlocks, limit_bytes: int) -> None:
        self._blocks = blocks
        count = limit_bytes // blocks.size_bytes
        self._memory = blocks.memory(count)
        self._free: list[int] = []
        self._taken = 0  # rows that were ever used
        self.store = HostStore[int](count * blocks.size_bytes, self._drop)

    @property
    def tokens(self) -> int:
        """Tokens of a block."""
        return self._blocks.tokens

    def places(self, slot: int, first: int, count: int) -> list[int]:
        """Return where the caches have a slot's blocks."""
        return self._blocks.places(slot, first, count)

    def keep(self, keys: Sequence[bytes], places: Sequence[int]) -> None:
        """Copy blocks to the host that it does not have, as far as there is room, from the first of a sequence on."""
        store, size = self.store, self._blocks.size_bytes
        claimed, new, rows = store.claim(keys), [], []
        for key, place in zip(keys, places, strict=True):
            if key in store:
                continue
            if not store.make_room(size):
                break
            rows.append(self._row())
            new.append(place)
            store.put(key, size, rows[-1])
            claimed += store.claim([key])
        if new:
            self._blocks.save(new, [self._memory[row] for row in rows])
        store.release(claimed)
        store.touch(keys)

    def held(self, keys: Sequence[bytes], first: int) -> int:
        """Return up to which of a sequence's blocks all are kept from `first` on."""
        stop = first
        while stop < len(keys) and keys[stop] in self.store:
            stop += 1
        return stop

    def load(self, keys: Sequence[bytes], places: Sequence[int]) -> None:
        """Copy blocks that are kept to their places in the caches."""
        self._blocks.load(places, [self._memory[self.store.get(key)] for key in keys])
        self.store.touch(keys)

    def has_room(self, keys: Sequence[bytes]) -> bool:
        """Whether all these blocks could be claimed at once."""
        missing = sum(not self.store.is_claimed(key) for key in keys)
        return self.store.claimed_bytes + missing * self._blocks.size_bytes <= self.store.limit_bytes

    def _row(self) -> int:
        if self._free:
            return self._free.pop()
        self._taken += 1
        return self._taken - 1

    def _drop(self, _key: bytes, row: int) -> None:
        self._free.append(row)
