"""Sequences kept whole in host memory.

Those with recurrent states, which continue only after all tokens that they have read, and those that other engines
computed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtkit.llm.cache.held_blocks import ChangeLog, chain, contents, digest
from trtkit.llm.cache.host.link import CopyRate
from trtkit.llm.cache.host.store import HostStore
from trtkit.llm.cache.transfers import DropSequence
from trtkit.llm.sequences import common_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.arrays import Array
    from trtkit.llm.cache.held_blocks import Block
    from trtkit.llm.cache.host.files import FileTier
    from trtkit.llm.cache.transfers import Transfer
    from trtkit.llm.execution import SavedSequence
    from trtkit.llm.sequences import Ints


class KeptSequence(NamedTuple):
    """A sequence that the host keeps under a number.

    ids: its tokens. is_from_file: whether it was just read from a file.
    """

    number: int
    ids: Ints
    is_from_file: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.ids)


class SavedSequences:
    """Sequences by number; numbers are never reused. data: by number, once it is saved or has arrived."""

    def __init__(self) -> None:
        self.data: dict[int, SavedSequence] = {}
        self._count = 0

    def number(self, saved: SavedSequence | None = None) -> int:
        """Return a number for a sequence that has been saved or will be."""
        self._count += 1
        if saved is not None:
            self.data[self._count] = saved
        return self._count


class SequenceTier:
    """Saved sequences of at most `limit_bytes`, by their tokens. What gives way is appended to `transfers` as dropped.

    saved: their data. files: where they are written too. of_bytes: makes a sequence of so many tokens of bytes, None if
    they do not fit. changes: the sequences that are kept, in blocks of block_tokens.
    """

    def __init__(
        self,
        limit_bytes: int,
        saved: SavedSequences,
        transfers: list[Transfer],
        block_tokens: int,
        files: FileTier | None = None,
        of_bytes: Callable[[int, Array], SavedSequence | None] = lambda _tokens, _data: None,
    ) -> None:
        self._saved, self._block_tokens = saved, block_tokens
        self._lengths: Counter[int] = Counter()
        self._files, self._of_bytes, self._transfers = files, of_bytes, transfers
        self.rate = CopyRate()
        self.store = HostStore[KeptSequence](limit_bytes, self._drop)
        self._unwritten: dict[int, bytes] = {}
        self.changes = ChangeLog(lambda: ((key, self._blocks(kept.ids)) for key, kept in self.store.items()))

    def key(self, ids: Ints) -> bytes:
        """Return the key of a sequence."""
        return digest(ids.tobytes())

    def __len__(self) -> int:
        return len(self.store)

    def add(self, key: bytes, ids: Ints, size_bytes: int) -> int | None:
        """Make room for the sequence `ids`, which will be saved; return its number, None if there is no room."""
        if not self.store.make_room(size_bytes):
            return None
        number = self._saved.number()
        self._put(key, KeptSequence(number, ids), size_bytes)
        if self._files is not None:
            self._unwritten[number] = ids.tobytes()
        return number

    def note_saved(self, number: int, saved: SavedSequence) -> None:
        """Store a saved sequence under its number, and write it to files."""
        self._saved.data[number] = saved
        if self._files is not None:
            self._files.put(self._unwritten.pop(number), saved.tokens, saved.data.numpy().tobytes())

    def put(self, ids: Ints, saved: SavedSequence) -> bool:
        """Keep a sequence of tokens `ids` that another engine has computed; return False if there is no room."""
        key = self.key(ids)
        if key not in self.store:
            if not self.store.make_room(saved.data.nbytes):
                return False
            self._put(key, KeptSequence(self._saved.number(saved), ids), saved.data.nbytes)
        self.store.touch([key])
        return True

    def take(self, prompt: Ints, least: int, *, is_whole: bool = False) -> tuple[SavedSequence, int] | None:
        """Remove and return what shares most with a prompt, with the shared length; None below `least` tokens.

        is_whole: consider only prefixes of the prompt, as recurrent states require. The prompt's last token is never
        shared.
        """
        best, most = self.key(prompt[:-1]), len(prompt) - 1
        if best not in self.store:
            most = 0
            for key, kept in self.store.items():
                common = common_length(kept.ids, prompt[:-1])
                if common > most and (common == kept.tokens or not is_whole):
                    best, most = key, common
        if not most or most < least:
            return None
        kept = self.store.pop(best)
        self._forget(best, kept)
        return self._saved.data.pop(kept.number), most

    def find(self, ids: Ints, least: int) -> KeptSequence | None:
        """Return the longest kept sequence of at least `least` tokens that is a prefix of the prompt.

        The prompt's last token is never shared: its logits give the next token.
        """
        in_files = set() if self._files is None else self._files.lengths
        for length in sorted(self._lengths.keys() | in_files, reverse=True):
            if not least <= length < len(ids):
                continue
            key = self.key(ids[:length])
            if key in self.store:
                self.store.touch([key])
                return self.store.get(key)
            saved = self._read(key, length) if length in in_files else None
            if saved is not None and self.store.make_room(saved.data.nbytes):
                kept = KeptSequence(self._saved.number(saved), ids[:length].copy())
                self._put(key, kept, saved.data.nbytes)
                return kept._replace(is_from_file=True)
        return None

    def _read(self, key: bytes, tokens: int) -> SavedSequence | None:
        """Return a sequence from its file, read immediately: whether it is intact decides how much is found."""
        data = None if self._files is None else self._files.read(key)
        return None if data is None else self._of_bytes(tokens, np.frombuffer(bytearray(data), np.uint8))

    def _blocks(self, ids: Ints) -> list[Block]:
        return chain(contents(ids, self._block_tokens))

    def _put(self, key: bytes, kept: KeptSequence, size_bytes: int) -> None:
        self.store.put(key, size_bytes, kept.tokens, kept)
        self._lengths[kept.tokens] += 1
        self.changes.note_held(key, lambda: self._blocks(kept.ids))

    def _drop(self, key: bytes, kept: KeptSequence) -> None:
        self._transfers.append(DropSequence(kept.number))
        self._forget(key, kept)

    def _forget(self, key: bytes, kept: KeptSequence) -> None:
        self.changes.note_lost(key)
        self._lengths[kept.tokens] -= 1
        if not self._lengths[kept.tokens]:
            del self._lengths[kept.tokens]
