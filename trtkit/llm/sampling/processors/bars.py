"""Tokens that are barred: by n-grams, bad words and ends that come too early; by forced words; by guides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.sampling.columns import Use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.arrays import Array
    from trtkit.llm.sampling.processors.step import SamplingStep

NOTHING = np.zeros(0, np.int64)


def repeated_ngrams(ids: Array, size: int) -> Array:
    """Return the tokens that would make the last `size` tokens occur twice in ids [L].

    transformers' NoRepeatNGramLogitsProcessor; from fairseq.
    """
    windows = len(ids) - size + 1
    if windows <= 0:
        return NOTHING
    matches = np.ones(windows, np.bool_)
    for step in range(size - 1):
        matches &= ids[step : step + windows] == ids[len(ids) - size + 1 + step]
    return ids[size - 1 :][matches]


def bar(step: SamplingStep) -> None:
    """Bar n-grams that repeat, bad words, and for `min_tokens` every token that ends the answer."""
    barred = [*_ngrams(step), *_words(step), *_ends(step)]
    if not barred:
        return
    rows = np.repeat([row for row, _ in barred], [len(tokens) for _, tokens in barred])
    tokens = np.concatenate([tokens for _, tokens in barred])
    known = tokens < step.scores.shape[1]
    step.scores[step.tensor(rows[known]), step.tensor(tokens[known])] = -np.inf


def _ngrams(step: SamplingStep) -> Iterator[tuple[int, Array]]:
    for row in step.rows(Use.NGRAM):
        slot = step.slots[row]
        yield int(row), repeated_ngrams(step.sequences.ids(slot), int(step.columns["no_repeat_ngram_size"][slot]))


def _words(step: SamplingStep) -> Iterator[tuple[int, Array]]:
    for row, state in step.states_of(Use.BAD_WORDS):
        yield row, state.bad_words.barred(step.sequences.ids(step.slots[row]))


def _ends(step: SamplingStep) -> Iterator[tuple[int, Array]]:
    """transformers' MinNewTokensLengthLogitsProcessor, and vLLM's for `stop_token_ids`."""
    using = step.rows(Use.MIN_TOKENS)
    early = using[step.steps(using) < step.columns["min_tokens"][step.slots[using]]]
    for row in early:
        state = step.states[step.slots[row]]
        if state is not None:
            yield int(row), state.stop_ids


def force(step: SamplingStep) -> None:
    """Bar every end until each forced word has occurred; force words when there is room for nothing else.

    Our definition, for transformers 5 dropped constrained beam search: as long as a word is missing, no token that ends
    the answer is allowed. Once the tokens left of `max_tokens` are no more than the missing words need, the words are
    forced token by token, the one that is furthest along first.
    """
    for row, state in step.states_of(Use.FORCE_WORDS):
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


def follow_guides(step: SamplingStep) -> None:
    """Bar what a row's grammar does not allow next."""
    rows, masks = [], []
    for row, state in step.states_of(Use.GUIDE):
        assert state.guide
        if not state.guide.error:
            rows.append(row)
            masks.append(state.guide.allowed(step.scores.shape[1]))
        if state.guide.error:  # which computing the mask may have met
            step.errors[row] = f"the answer cannot follow `{state.settings.params.guided}`: {state.guide.error}"
    if rows:
        barred = ~np.stack(masks)
        chosen = step.tensor(np.array(rows))
        step.scores[chosen] = step.scores[chosen].masked_fill(step.tensor(barred), -np.inf)
