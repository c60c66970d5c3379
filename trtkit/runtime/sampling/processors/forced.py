"""Words that must occur."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.sampling.columns import Use

if TYPE_CHECKING:
    from trtkit.runtime.sampling.processors.step import Array, Step
    from trtkit.runtime.sampling.settings import Ids


def force(step: Step) -> None:
    """Bar every end until each forced word has occurred; force words when there is room for nothing else.

    Our definition, for transformers 5 dropped constrained beam search: as long as a word is missing, no token that ends
    the answer is allowed. Once the tokens left of `max_tokens` are no more than the missing words need, the words are
    forced token by token, the one that is furthest along first.
    """
    for row, state in step.each(Use.FORCE_WORDS):
        slot = step.slots[row]
        generated = step.sequences.generated(slot)
        missing = state.force_words.missing(generated)
        token = missing.forced(generated, state.max_tokens - len(generated))
        scores = step.scores[row]
        if token is not None:
            kept = scores[token].clone()
            scores.fill_(-np.inf)
            scores[token] = kept
        elif missing.words:
            scores[step.tensor(state.stop_ids)] = -np.inf


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
        _, spelling = max(candidates, key=lambda each: each[0])
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
