"""Words as runs of tokens: those that must not occur, and those that must."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trtkit.arrays import Array

Ids = tuple[int, ...]


@dataclass(frozen=True)
class BadWords:
    """Runs of tokens that must not occur: single tokens, and longer ones grouped by length as (beginnings, ends)."""

    single: Array
    longer: tuple[tuple[Array, Array], ...]

    @classmethod
    def of(cls, words: tuple[Ids, ...], eos_ids: Ids) -> BadWords:
        """Group words. As in transformers (NoBadWordsLogitsProcessor), an end-of-sequence token is not a bad word."""
        kept = [word for word in dict.fromkeys(words) if not (len(word) == 1 and word[0] in eos_ids)]
        single = np.array([word[0] for word in kept if len(word) == 1], np.int64)
        groups = [[word for word in kept if len(word) == size] for size in {len(word) for word in kept} - {1}]
        arrays = [np.array(group, np.int64) for group in groups]
        return cls(single, tuple((group[:, :-1], group[:, -1]) for group in arrays))

    def barred(self, ids: Array) -> Array:
        """Return the tokens that would complete a word after ids [L]."""
        tokens = [self.single]
        for beginnings, ends in self.longer:
            size = beginnings.shape[1]
            if size <= len(ids):
                tokens.append(ends[(beginnings == ids[-size:]).all(-1)])
        return np.concatenate(tokens)


@dataclass(frozen=True)
class ForceWords:
    """Words, each with its spellings."""

    words: tuple[tuple[Ids, ...], ...]

    def missing(self, generated: Array) -> ForceWords:
        """Return the words no spelling of which occurs in `generated` [t]."""
        absent = [word for word in self.words if not any(occurs(spelling, generated) for spelling in word)]
        return ForceWords(tuple(absent))

    def forced(self, generated: Array, left: int) -> int | None:
        """Return the next token of a missing word if only `left` tokens are to come and the words need them all."""
        if not self.words or left > sum(min(map(len, word)) for word in self.words):
            return None
        candidates = [(_spared(spelling, word, generated), spelling) for word in self.words for spelling in word]
        # Words that spare most are furthest along; the first of equal ones, so that a word is not left half way.
        _, spelling = max(candidates, key=lambda candidate: candidate[0])
        return spelling[begun_tokens(spelling, generated)]


def _spared(spelling: Ids, word: tuple[Ids, ...], generated: Array) -> int:
    """Return how many tokens fewer than the word's shortest spelling are to come; below 0 where it would need more."""
    return min(map(len, word)) - len(spelling) + begun_tokens(spelling, generated)


def occurs(word: Ids, tokens: Array) -> bool:
    """Return whether a run of tokens occurs in tokens [t]."""
    if len(tokens) < len(word):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(word))
    return bool((windows == word).all(-1).any())


def begun_tokens(word: Ids, tokens: Array) -> int:
    """Return how much of the beginning of a word the tokens [t] end with."""
    for size in range(min(len(word) - 1, len(tokens)), 0, -1):
        if tuple(tokens[-size:].tolist()) == word[:size]:
            return size
    return 0
