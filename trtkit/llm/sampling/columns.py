"""The settings of every slot, written at admission: columns of numbers for all rows at once, word lists, guides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntFlag
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.arrays import Array
    from trtkit.llm.sampling.guides import Guide
    from trtkit.llm.sampling.params import Ids
    from trtkit.llm.sampling.settings import Settings

# Setting and type of each number that a formula reads.
_NUMBERS = {
    "temperature": np.float32,
    "top_k": np.int64,
    "top_p": np.float64,
    "min_p": np.float32,
    "typical_p": np.float32,
    "repetition_penalty": np.float32,
    "presence_penalty": np.float32,
    "frequency_penalty": np.float32,
    "no_repeat_ngram_size": np.int64,
    "min_tokens": np.int64,
}


class Use(IntFlag):
    """Processing that a slot needs; what no row needs is skipped."""

    SAMPLE = 1
    BIAS = 2
    REPETITION = 4
    COUNTS = 8
    NGRAM = 16
    BAD_WORDS = 32
    MIN_TOKENS = 64
    FORCE_WORDS = 128
    GUIDE = 256
    FUNCTIONS = 512
    TOP_K = 1024
    TOP_P = 2048
    MIN_P = 4096
    TYPICAL = 8192
    LOGPROBS = 16384
    WORD_RUNS = 32768


PROCESSORS = (
    Use.BIAS | Use.REPETITION | Use.COUNTS | Use.NGRAM | Use.BAD_WORDS | Use.MIN_TOKENS | Use.FORCE_WORDS | Use.GUIDE
) | Use.FUNCTIONS
WAITS = Use.NGRAM | Use.WORD_RUNS | Use.FORCE_WORDS | Use.GUIDE | Use.FUNCTIONS
"""Processing that depends on earlier tokens, which the host has to know."""


class Columns:
    """Numbers [slots] of each setting, and which of them each slot uses."""

    def __init__(self, slots: int) -> None:
        self.uses = np.zeros(slots, np.int32)
        self._numbers: dict[str, Array] = {name: np.zeros(slots, kind) for name, kind in _NUMBERS.items()}

    def admit(self, slot: int, settings: Settings) -> None:
        """Write the row of a slot."""
        for name, column in self._numbers.items():
            column[slot] = getattr(settings.params, name)
        self.uses[slot] = sum(_uses(settings))

    def release(self, slot: int) -> None:
        """Clear the row of a slot."""
        self.uses[slot] = 0

    def copy(self, source: int, target: int) -> None:
        """Copy the row of `source` to `target`."""
        for column in (self.uses, *self._numbers.values()):
            column[target] = column[source]

    def __getitem__(self, name: str) -> Array:
        return self._numbers[name]


def _uses(settings: Settings) -> Iterator[Use]:
    params = settings.params
    conditions = {
        Use.BIAS: params.logit_bias,
        Use.REPETITION: params.repetition_penalty != 1,
        Use.COUNTS: params.presence_penalty or params.frequency_penalty,
        Use.NGRAM: params.no_repeat_ngram_size,
        Use.BAD_WORDS: settings.bad_words,
        Use.WORD_RUNS: any(len(word) > 1 for word in settings.bad_words),
        Use.MIN_TOKENS: params.min_tokens and settings.stop_ids,
        Use.FORCE_WORDS: settings.force_words,
        Use.GUIDE: params.guided,
        Use.FUNCTIONS: params.logits_processors,
        Use.LOGPROBS: params.logprobs is not None,
    }
    yield from (use for use, used in conditions.items() if used)
    if params.draws:
        yield Use.SAMPLE
        yield from _filters(settings)


def _filters(settings: Settings) -> Iterator[Use]:
    params = settings.params
    conditions = {
        Use.TOP_K: params.top_k > 0,
        Use.TOP_P: params.top_p < 1,
        Use.MIN_P: params.min_p > 0,
        Use.TYPICAL: params.typical_p < 1,
    }
    yield from (use for use, used in conditions.items() if used)


@dataclass(frozen=True)
class SlotState:
    """A slot's lists as arrays, and its guide."""

    settings: Settings
    bias_ids: Array
    bias_values: Array
    bad_words: BadWords
    force_words: ForceWords
    stop_ids: Array
    guide: Guide | None = None

    @classmethod
    def of(cls, settings: Settings, guide: Guide | None) -> SlotState:
        """Return the state of a new slot."""
        bias = settings.params.logit_bias
        return cls(
            settings,
            np.fromiter(bias.keys(), np.int64, len(bias)),
            np.fromiter(bias.values(), np.float32, len(bias)),
            BadWords.of(settings.bad_words, settings.eos_ids),
            ForceWords(settings.force_words),
            np.array(settings.stop_ids, np.int64),
            guide,
        )

    @property
    def max_tokens(self) -> int:
        """Limit on the answer's tokens."""
        return self.settings.params.max_tokens

    def copy(self) -> SlotState:
        """Return an independent copy."""
        return replace(self, guide=self.guide.copy() if self.guide else None)


@dataclass(frozen=True)
class BadWords:
    """Token sequences that must not occur.

    Single tokens, and longer ones grouped by length as (prefixes, last tokens).
    """

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
    """Words that must occur, each with its spellings."""

    words: tuple[tuple[Ids, ...], ...]

    def missing(self, generated: Array) -> ForceWords:
        """Return the words no spelling of which occurs in `generated` [t]."""
        absent = [word for word in self.words if not any(occurs(spelling, generated) for spelling in word)]
        return ForceWords(tuple(absent))

    def forced(self, generated: Array, left: int) -> int | None:
        """Return the next token of a missing word if the missing words need all of the `left` tokens to come."""
        if not self.words or left > sum(min(map(len, word)) for word in self.words):
            return None
        candidates = [(_spared(spelling, word, generated), spelling) for word in self.words for spelling in word]
        # Choose the word that is furthest along; the first of equal ones, so that no word is abandoned half way.
        _, spelling = max(candidates, key=lambda candidate: candidate[0])
        return spelling[begun_tokens(spelling, generated)]


def _spared(spelling: Ids, word: tuple[Ids, ...], generated: Array) -> int:
    """Return how many tokens a spelling saves against the word's shortest one; negative if it needs more."""
    return min(map(len, word)) - len(spelling) + begun_tokens(spelling, generated)


def occurs(word: Ids, tokens: Array) -> bool:
    """Return whether a run of tokens occurs in tokens [t]."""
    if len(tokens) < len(word):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(word))
    return bool((windows == word).all(-1).any())


def begun_tokens(word: Ids, tokens: Array) -> int:
    """Return the length of the longest prefix of the word with which tokens [t] end."""
    for size in range(min(len(word) - 1, len(tokens)), 0, -1):
        if tuple(tokens[-size:].tolist()) == word[:size]:
            return size
    return 0
