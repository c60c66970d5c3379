"""Whole sequences in host memory, as recurrent states need them: they go on after all tokens that they have read."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING

from trtkit.runtime.host_cache.store import HostStore

if TYPE_CHECKING:
    from trtkit.runtime.decoder import SavedSequence
    from trtkit.runtime.sequences import Ints


class SequenceTier:
    """Saved sequences of at most `limit_bytes`, by their tokens."""

    def __init__(self, limit_bytes: int) -> None:
        self._lengths: Counter[int] = Counter()
        self.store = HostStore["SavedSequence"](limit_bytes, self._drop)

    def key(self, ids: Ints) -> bytes:
        """Return the key of a sequence."""
        return blake2b(ids.tobytes(), digest_size=32).digest()

    def add(self, ids: Ints, saved: SavedSequence) -> bytes | None:
        """Keep the cached tokens `ids`; return their key, None if there is no room."""
        key, size = self.key(ids), saved.data.nbytes
        if key not in self.store:
            if not self.store.make_room(size):
                return None
            self.store.put(key, size, saved)
            self._lengths[saved.tokens] += 1
        self.store.touch([key])
        return key

    def find(self, ids: Ints, least: int) -> SavedSequence | None:
        """Return the longest that a prompt begins with all of, of at least so many tokens.

        The prompt's last token stays to be computed: its logits are what comes next.
        """
        for length in sorted(self._lengths, reverse=True):
            if least <= length < len(ids) and (key := self.key(ids[:length])) in self.store:
                self.store.touch([key])
                return self.store.get(key)
        return None

    def _drop(self, _key: bytes, saved: SavedSequence) -> None:
        self._lengths[saved.tokens] -= 1
        if not self._lengths[saved.tokens]:
            del self._lengths[saved.tokens]
