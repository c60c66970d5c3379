"""Values by key within a byte limit, evicted least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")


@dataclass
class _Entry(Generic[T]):
    size_bytes: int
    value: T
    retained: int = 0


class HostStore(Generic[T]):
    """Values of known sizes. Retained ones stay; all others may be evicted for new ones.

    on_drop: called with the key and value of each evicted one.
    """

    def __init__(self, limit_bytes: int, on_drop: Callable[[bytes, T], None] = lambda _key, _value: None) -> None:
        self.limit_bytes, self._on_drop = limit_bytes, on_drop
        self.size_bytes = self.retained_bytes = 0
        self._entries: OrderedDict[bytes, _Entry[T]] = OrderedDict()

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
        """Evict the least recently used until `size_bytes` fit; return False if retained values leave no room."""
        if self.retained_bytes + size_bytes > self.limit_bytes:
            return False
        excess, dropped = self.size_bytes + size_bytes - self.limit_bytes, []
        for key, entry in self._entries.items():
            if excess <= 0:
                break
            if not entry.retained:
                dropped.append(key)
                excess -= entry.size_bytes
        for key in dropped:
            self._drop(key)
        return True

    def put(self, key: bytes, size_bytes: int, value: T) -> None:
        """Store a value for which `make_room` has made room."""
        assert key not in self._entries
        assert self.size_bytes + size_bytes <= self.limit_bytes
        self._entries[key] = _Entry(size_bytes, value)
        self.size_bytes += size_bytes

    def pop(self, key: bytes) -> T:
        """Remove and return a stored value that is not retained."""
        entry = self._entries.pop(key)
        assert not entry.retained
        self.size_bytes -= entry.size_bytes
        return entry.value

    def touch(self, keys: Iterable[bytes]) -> None:
        """Mark a sequence's blocks as used; later ones are evicted before their predecessors."""
        for key in reversed(list(keys)):
            if key in self._entries:
                self._entries.move_to_end(key)

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

    def _drop(self, key: bytes) -> None:
        self._on_drop(key, self.pop(key))
