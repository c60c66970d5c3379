"""Values by key within a byte limit; what costs the fewest tokens per byte to compute again is evicted first.

Values whose bytes grow with their tokens are equally worth keeping: of those, the least recently used is evicted.
Source: GreedyDual-Size, Cao and Irani, USITS 1997.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")


@dataclass
class _Entry(Generic[T]):
    """A value. worth: tokens per byte, a power of two. rank: lowest evicted first; uses are counted to break ties."""

    size_bytes: int
    value: T
    worth: float
    rank: tuple[float, int] = (0.0, 0)
    retained: int = 0


class HostStore(Generic[T]):
    """Values of known sizes. Retained ones stay; all others may be evicted for new ones.

    Whenever a value is used, its rank becomes its worth above the highest rank ever evicted, so that unused values of
    any worth are evicted eventually. on_drop: called with the key and value of each evicted one.
    """

    def __init__(self, limit_bytes: int, on_drop: Callable[[bytes, T], None] = lambda _key, _value: None) -> None:
        self.limit_bytes, self._on_drop = limit_bytes, on_drop
        self.size_bytes = self.retained_bytes = 0
        self._entries: dict[bytes, _Entry[T]] = {}
        self._by_worth: dict[float, OrderedDict[bytes, _Entry[T]]] = {}  # each in the order of its ranks
        self._evicted_rank, self._uses = 0.0, 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def get(self, key: bytes) -> T:
        """Return a stored value."""
        return self._entries[key].value

    def items(self) -> Iterator[tuple[bytes, T]]:
        """Yield all stored values."""
        return ((key, entry.value) for key, entry in self._entries.items())

    def make_room(self, size_bytes: int) -> bool:
        """Evict values until `size_bytes` fit; return False if retained values leave no room."""
        if self.retained_bytes + size_bytes > self.limit_bytes:
            return False
        excess, dropped = self.size_bytes + size_bytes - self.limit_bytes, []
        for key, entry in heapq.merge(*(group.items() for group in self._by_worth.values()), key=_rank):
            if excess <= 0:
                break
            if not entry.retained:
                dropped.append(key)
                excess -= entry.size_bytes
                self._evicted_rank = max(self._evicted_rank, entry.rank[0])
        for key in dropped:
            self._on_drop(key, self.pop(key))
        return True

    def put(self, key: bytes, size_bytes: int, tokens: int, value: T) -> None:
        """Store a value of `tokens` tokens for which `make_room` has made room."""
        assert key not in self._entries
        assert self.size_bytes + size_bytes <= self.limit_bytes
        worth = 2.0 ** math.frexp(tokens / size_bytes)[1]
        self._entries[key] = self._by_worth.setdefault(worth, OrderedDict())[key] = _Entry(size_bytes, value, worth)
        self.size_bytes += size_bytes
        self.touch([key])

    def pop(self, key: bytes) -> T:
        """Remove and return a stored value that is not retained."""
        entry = self._entries.pop(key)
        assert not entry.retained
        group = self._by_worth[entry.worth]
        del group[key]
        if not group:
            del self._by_worth[entry.worth]
        self.size_bytes -= entry.size_bytes
        return entry.value

    def touch(self, keys: Iterable[bytes]) -> None:
        """Mark a sequence's blocks as used; later ones are evicted before their predecessors."""
        for key in reversed(list(keys)):
            if (entry := self._entries.get(key)) is not None:
                self._uses += 1
                entry.rank = self._evicted_rank + entry.worth, self._uses
                self._by_worth[entry.worth].move_to_end(key)

    def retain(self, keys: Iterable[bytes]) -> list[bytes]:
        """Retain those of `keys` that are stored until they are released; return them."""
        kept = [key for key in keys if key in self._entries]
        for key in kept:
            entry = self._entries[key]
            self.retained_bytes += 0 if entry.retained else entry.size_bytes
            entry.retained += 1
        return kept

    def release(self, keys: Iterable[bytes]) -> None:
        """Undo one `retain` of each of `keys`."""
        for key in keys:
            entry = self._entries[key]
            entry.retained -= 1
            self.retained_bytes -= 0 if entry.retained else entry.size_bytes

    def is_retained(self, key: bytes) -> bool:
        """Whether a value is stored and retained."""
        return key in self._entries and self._entries[key].retained > 0


def _rank(item: tuple[bytes, _Entry[T]]) -> tuple[float, int]:
    return item[1].rank
