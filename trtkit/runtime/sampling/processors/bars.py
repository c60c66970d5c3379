"""Tokens that are barred: they would repeat an n-gram, complete a bad word, or end the answer too early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.sampling.columns import Use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.runtime.sampling.processors.step import Array, Step
    from trtkit.runtime.sampling.settings import Ids

NOTHING = np.zeros(0, np.int64)


def repeated_ngrams(ids: Array, size: int) -> Array:
    """Return the tokens that would make the last `size` tokens occur twice in ids [L].

    transformers' NoRepeatNGramLogitsProcessor; from fairseq.
    """
    windows = len(ids) - size + 1
    if windows <= 0:
        return NOTHING
    matches = np.ones(windows, np.bool_)
    for place in range(size - 1):
        matches &= ids[place : place + windows] == ids[len(ids) - size + 1 + place]
    return ids[size - 1 :][matches]


@dataclass(frozen=True)
class BadWords:
    """Runs of tokens that must not occur: single tokens, and longer ones grouped by length as (beginnings, ends)."""

    single: Array
    longer: tuple[tuple[Array, Array], ...]

    @classmethod
    def of(cls, words: tuple[Ids, ...], eos_ids: Ids) -> BadWords:
        """Group words. As in transformers (NoBadWordsLogitsProcessor), an end-of-sequence token is no bad word."""
        kept = [word for word in dict.fromkeys(words) if not (len(word) == 1 and word[0] in eos_ids)]
        single = np.array([word[0] for word in kept if len(word) == 1], np.int64)
        groups = [[word for word in kept if len(word) == size] for size in {len(word) for word in kept} - {1}]
        arrays = [np.array(group, np.int64) for group in groups]
        return cls(single, tuple((group[:, :-1], group[:, -1]) for group in arrays))

    def barred(self, ids: Array) -> Array:
        """Return the tokens that would complete a word behind ids [L]."""
        tokens = [self.single]
        for beginnings, ends in self.longer:
            size = beginnings.shape[1]
            if size <= len(ids):
                tokens.append(ends[(beginnings == ids[-size:]).all(-1)])
        return np.concatenate(tokens)


def bar(step: Step) -> None:
    """Bar n-grams that repeat, bad words, and for `min_tokens` every token that ends the answer."""
    barred = [*_ngrams(step), *_words(step), *_ends(step)]
    if not barred:
        return
    rows = np.repeat([row for row, _ in barred], [len(tokens) for _, tokens in barred])
    tokens = np.concatenate([tokens for _, tokens in barred])
    known = tokens < step.scores.shape[1]
    step.scores[step.tensor(rows[known]), step.tensor(tokens[known])] = -np.inf


def _ngrams(step: Step) -> Iterator[tuple[int, Array]]:
    for row in step.rows(Use.NGRAM):
        slot = step.slots[row]
        yield int(row), repeated_ngrams(step.sequences.ids(slot), int(step.columns["no_repeat_ngram_size"][slot]))


def _words(step: Step) -> Iterator[tuple[int, Array]]:
    for row, state in step.each(Use.BAD_WORDS):
        yield row, state.bad_words.barred(step.sequences.ids(step.slots[row]))


def _ends(step: Step) -> Iterator[tuple[int, Array]]:
    """transformers' MinNewTokensLengthLogitsProcessor, and vLLM's for `stop_token_ids`."""
    using = step.rows(Use.MIN_TOKENS)
    early = using[step.steps(using) < step.columns["min_tokens"][step.slots[using]]]
    for row in early:
        state = step.states[step.slots[row]]
        if state is not None:
            yield int(row), state.stop_ids
