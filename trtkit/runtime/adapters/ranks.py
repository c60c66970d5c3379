"""Which ranks of the shared memory are which adapter's: numbers only."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class RankTable:
    """Ranks by adapter, the one that was used last at the end. Any free ranks will do: they need not be neighbours."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._ranks: OrderedDict[int, list[int]] = OrderedDict()

    @property
    def free(self) -> int:
        """Ranks that no adapter has."""
        return len(self._free)

    @property
    def residents(self) -> list[int]:
        """The adapters that have ranks, the one that was used last at the end."""
        return list(self._ranks)

    def use(self, adapter: int) -> bool:
        """Note that an adapter is used now; return whether it has ranks."""
        if adapter in self._ranks:
            self._ranks.move_to_end(adapter)
        return adapter in self._ranks

    def to_evict(self, needed: int, running: Collection[int]) -> list[int] | None:
        """Return which adapters to evict, those used longest ago first, so that `needed` ranks are free.

        running: adapters that stay. None if there would be too few.
        """
        chosen: list[int] = []
        free = self.free
        for adapter, ranks in self._ranks.items():
            if free >= needed:
                break
            if adapter not in running:
                chosen.append(adapter)
                free += len(ranks)
        return chosen if free >= needed else None

    def to_keep(self, needed: int, running: Collection[int]) -> set[int]:
        """Return which of the running adapters leave room for `needed` ranks, however long they run.

        Those in use stay the same or become fewer while nobody else begins, so one that waits for the ranks gets them
        when the requests of all others have ended.
        """
        kept, free = set(), self.count - needed
        for adapter in sorted(each for each in self._ranks if each in running):
            if len(self._ranks[adapter]) <= free:
                kept.add(adapter)
                free -= len(self._ranks[adapter])
        return kept

    def take(self, adapter: int, count: int) -> list[int]:
        """Give an adapter `count` free ranks, the lowest; return them."""
        self._free.sort(reverse=True)
        self._ranks[adapter] = ranks = [self._free.pop() for _ in range(count)]
        return ranks

    def release(self, adapter: int) -> list[int]:
        """Take an adapter's ranks; return them."""
        ranks = self._ranks.pop(adapter)
        self._free += ranks
        return ranks
