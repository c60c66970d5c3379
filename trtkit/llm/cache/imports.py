"""Prefixes that other engines computed, kept on the host until a prompt with the same prefix gets a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.llm.cache.held_blocks import ChangeLog, chain, contents

if TYPE_CHECKING:
    from trtkit.llm.cache.held_blocks import Block
    from trtkit.llm.execution import SavedSequence
    from trtkit.llm.sequences import Ints


class Imports:
    """At most `most_bytes` of them; the oldest give way. What is lost is computed again.

    changes: what is kept, in blocks of block_tokens.
    """

    def __init__(self, most_bytes: int, block_tokens: int = 16) -> None:
        self._most_bytes, self.size_bytes = most_bytes, 0
        self._saved: dict[bytes, tuple[Ints, SavedSequence]] = {}
        self._block_tokens = block_tokens
        self.changes = ChangeLog(lambda: ((key, self._blocks(ids)) for key, (ids, _) in self._saved.items()))

    def __len__(self) -> int:
        return len(self._saved)

    def add(self, ids: Ints, saved: SavedSequence) -> bool:
        """Keep the cached tokens `ids`; return whether they fit."""
        size = saved.data.nbytes
        if size > self._most_bytes:
            return False
        self._remove(ids.tobytes())
        while self.size_bytes + size > self._most_bytes:
            self._remove(next(iter(self._saved)))
        self._saved[ids.tobytes()] = ids, saved
        self.size_bytes += size
        self.changes.note_held(ids.tobytes(), lambda: self._blocks(ids))
        return True

    def take(self, prompt: Ints, least: int, *, is_whole: bool = False) -> tuple[SavedSequence, int] | None:
        """Return what shares most with a prompt, and for how many tokens; None below `least` of them.

        is_whole: only what a prompt begins with all of, as recurrent states need it.
        The prompt's last token stays to be computed: its logits are what comes next.
        """
        best, most = b"", 0
        if (whole := prompt[:-1].tobytes()) in self._saved:
            best, most = whole, len(prompt) - 1
        for key, (ids, _) in self._saved.items() if not most else ():
            common = _common(ids, prompt[:-1])
            if common > most and (common == len(ids) or not is_whole):
                best, most = key, common
        if not most or most < least:
            return None
        _, saved = self._saved[best]
        self._remove(best)
        return saved, most

    def _remove(self, key: bytes) -> None:
        if key in self._saved:
            self.size_bytes -= self._saved.pop(key)[1].data.nbytes
            self.changes.note_lost(key)

    def _blocks(self, ids: Ints) -> list[Block]:
        return chain(contents(ids, self._block_tokens))


def _common(one: Ints, other: Ints) -> int:
    """Return how many tokens two sequences begin alike with."""
    count = min(len(one), len(other))
    is_other = one[:count] != other[:count]
    return int(is_other.argmax()) if is_other.any() else count
