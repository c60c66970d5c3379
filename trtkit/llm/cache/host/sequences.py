"""Whole sequences in host memory, as recurrent states need them: they go on after all tokens that they have read."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.cache.host.store import CopyRate, HostStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.arrays import Array
    from trtkit.llm.cache.host.files import FileTier
    from trtkit.llm.execution import SavedSequence
    from trtkit.llm.sequences import Ints


class SequenceTier:
    """Saved sequences of at most `limit_bytes`, by their tokens.

    files: where they are written too. of_bytes: makes a sequence of so many tokens of bytes, None if they do not fit.
    """

    def __init__(
        self,
        limit_bytes: int,
        files: FileTier | None,
        of_bytes: Callable[[int, Array], SavedSequence | None],
    ) -> None:
        self._lengths: Counter[int] = Counter()
        self._files, self._of_bytes = files, of_bytes
        self.rate = CopyRate()
        self.store = HostStore["SavedSequence"](limit_bytes, self._drop)

    def key(self, ids: Ints) -> bytes:
        """Return the key of a sequence."""
        return blake2b(ids.tobytes(), digest_size=32).digest()

    def add(self, ids: Ints, saved: SavedSequence) -> bytes | None:
        """Keep the sequence of the tokens `ids`; return its key, or None if there is no room."""
        key = self.key(ids)
        if key not in self.store:
            if not self._put(key, saved):
                return None
            if self._files is not None:
                self._files.put(key, saved.tokens, saved.data.numpy().tobytes())
        self.store.touch([key])
        return key

    def find(self, ids: Ints, least: int) -> tuple[SavedSequence, bool] | None:
        """Return the longest that a prompt begins with all of, of at least so many tokens, and whether a file had it.

        The prompt's last token stays to be computed: its logits are what comes next.
        """
        in_files = set() if self._files is None else self._files.lengths
        for length in sorted(self._lengths.keys() | in_files, reverse=True):
            if not least <= length < len(ids):
                continue
            key = self.key(ids[:length])
            if key in self.store:
                self.store.touch([key])
                return self.store.get(key), False
            saved = self._read(key, length) if length in in_files else None
            if saved is not None:
                self._put(key, saved)
                return saved, True
        return None

    def _read(self, key: bytes, tokens: int) -> SavedSequence | None:
        data = None if self._files is None else self._files.read(key)
        return None if data is None else self._of_bytes(tokens, np.frombuffer(bytearray(data), np.uint8))

    def _put(self, key: bytes, saved: SavedSequence) -> bool:
        size = saved.data.nbytes
        if not self.store.make_room(size):
            return False
        self.store.put(key, size, saved)
        self._lengths[saved.tokens] += 1
        return True

    def _drop(self, _key: bytes, saved: SavedSequence) -> None:
        self._lengths[saved.tokens] -= 1
        if not self._lengths[saved.tokens]:
            del self._lengths[saved.tokens]
