"""Changes of scores before temperature and filters: biases, penalties, bans, guides, users' functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.llm.sampling.columns import Use
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from trtkit.arrays import Array
    from trtkit.llm.sampling.columns import Columns, SlotState
    from trtkit.llm.sequences import Sequences


@dataclass
class SamplingStep:
    """Scores [R, V] that processors write into, and their rows' slots.

    slots, uses: [R]. states: of every slot. errors: rows whose request cannot continue, and why.
    """

    scores: Tensor
    slots: Array
    uses: Array
    columns: Columns
    states: list[SlotState | None]
    sequences: Sequences
    errors: dict[int, str] = field(default_factory=dict)

    def rows(self, use: Use) -> Array:
        """Return the rows that need a kind of processing."""
        return np.flatnonzero(self.uses & int(use))

    def states_of(self, use: Use) -> list[tuple[int, SlotState]]:
        """Return the rows that need a kind of processing, with their slots' states."""
        states = [(int(row), self.states[self.slots[row]]) for row in self.rows(use)]
        return [(row, state) for row, state in states if state is not None]

    def steps(self, rows: Array) -> Array:
        """Return the number of tokens that each of `rows` has generated."""
        slots = self.slots[rows]
        return self.sequences.lengths[slots] - self.sequences.prompt_lengths[slots]

    def pairs(self, rows: Array, generated: bool) -> tuple[Array, Array]:
        """Return every known token of `rows`, or every generated one, as (row, token) pairs with repetitions."""
        slots = self.slots[rows]
        lengths = self.sequences.lengths[slots]
        begins = self.sequences.prompt_lengths[slots] if generated else np.zeros_like(lengths)
        first, last = int(begins.min()), int(lengths.max())
        tokens = self.sequences.tokens[slots, first:last]
        positions = np.arange(first, last)
        # A model may accept tokens that it has no logits for.
        there = (positions >= begins[:, None]) & (positions < lengths[:, None]) & (tokens < self.scores.shape[1])
        row_of, _ = np.nonzero(there)
        return rows[row_of], tokens[there]

    def tensor(self, values: Array) -> Tensor:
        """Return an array on the scores' device."""
        return to_device(np.ascontiguousarray(values), self.scores.device)


def add_bias(step: SamplingStep) -> None:
    """Add `logit_bias` (OpenAI's definition; transformers' SequenceBiasLogitsProcessor for runs of one token)."""
    biased = step.states_of(Use.BIAS)
    if not biased:
        return
    rows = np.repeat([row for row, _ in biased], [len(state.bias_ids) for _, state in biased])
    ids = np.concatenate([state.bias_ids for _, state in biased])
    values = np.concatenate([state.bias_values for _, state in biased])
    step.scores[step.tensor(rows), step.tensor(ids)] += step.tensor(values)


def penalise_repetition(step: SamplingStep) -> None:
    """Multiply negative scores of tokens in prompt and answer by the penalty; divide positive ones by it.

    CTRL, arXiv:1909.05858; transformers' RepetitionPenaltyLogitsProcessor.
    """
    using = step.rows(Use.REPETITION)
    if not using.size:
        return
    rows, ids = step.pairs(using, generated=False)
    penalty = step.tensor(step.columns["repetition_penalty"][step.slots[rows]])
    cells = step.tensor(rows), step.tensor(ids)
    score = step.scores[cells]
    # A token that occurs twice writes the same score twice.
    step.scores[cells] = torch.where(score < 0, score * penalty, score / penalty)


class TokenCounts:
    """How often each slot has generated each token: [slots, V], allocated when the first request needs it."""

    def __init__(self, slots: int, vocab_size: int) -> None:
        self._shape = slots, vocab_size
        self._counts: Array | None = None

    def admit(self, slot: int, generated: Array) -> None:
        """Count the tokens that a slot has generated before."""
        if self._counts is None:
            self._counts = np.zeros(self._shape, np.int32)
        known = generated[generated < self._shape[1]]
        self._counts[slot] = np.bincount(known, minlength=self._shape[1])

    def copy(self, source: int, target: int) -> None:
        """Copy the counts of `source` to `target`."""
        if self._counts is not None:
            self._counts[target] = self._counts[source]

    def accept(self, slots: Array, tokens: Array) -> None:
        """Count one more token [R] in each of `slots` [R]."""
        if self._counts is not None:
            known = (tokens >= 0) & (tokens < self._shape[1])
            self._counts[slots[known], tokens[known]] += 1

    def at(self, slots: Array, tokens: Array) -> Any:
        """Return the counts of (slot, token) pairs."""
        assert self._counts is not None
        return self._counts[slots, tokens]


def penalise_counts(step: SamplingStep, counts: TokenCounts) -> None:
    """Subtract `frequency_penalty * count + presence_penalty` from tokens of the answer (OpenAI's definition)."""
    using = step.rows(Use.COUNTS)
    if not using.size:
        return
    rows, ids = step.pairs(using, generated=True)
    slots = step.slots[rows]
    cost = step.columns["frequency_penalty"][slots] * counts.at(slots, ids).astype(np.float32)
    cost += step.columns["presence_penalty"][slots]
    cells = step.tensor(rows), step.tensor(ids)
    step.scores[cells] = step.scores[cells] - step.tensor(cost)


NOTHING = np.zeros(0, np.int64)


def repeated_ngrams(ids: Array, size: int) -> Array:
    """Return the tokens that would repeat an n-gram of length `size` in ids [L].

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
    """Ban repeated n-grams, bad words and, for `min_tokens`, every token that ends the answer."""
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
    """Ban every end until each forced word has occurred; force words once there is room for nothing else.

    trtkit's own definition, since transformers 5 has dropped constrained beam search: as long as a word is missing, no
    token that ends the answer is allowed. Once the tokens left of `max_tokens` are no more than the missing words need,
    the words are forced token by token, the one that is furthest along first.
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
    """Ban what a row's grammar does not allow next."""
    rows, masks = [], []
    for row, state in step.states_of(Use.GUIDE):
        assert state.guide
        if not state.guide.error:
            rows.append(row)
            masks.append(state.guide.allowed(step.scores.shape[1]))
        if state.guide.error:  # computing the mask may have failed
            step.errors[row] = f"the answer cannot follow `{state.settings.params.guided}`: {state.guide.error}"
    if rows:
        barred = ~np.stack(masks)
        chosen = step.tensor(np.array(rows))
        step.scores[chosen] = step.scores[chosen].masked_fill(step.tensor(barred), -np.inf)


def call_functions(step: SamplingStep) -> None:
    """Call `processor(input_ids [1, L], scores [1, V]) -> scores` in order. A failing one ends its own request only."""
    for row, state in step.states_of(Use.FUNCTIONS):
        ids = step.tensor(step.sequences.ids(step.slots[row]).copy()[None])
        for function in state.settings.params.logits_processors:
            try:
                step.scores[row] = _called(function, ids, step.scores[row : row + 1].clone())[0]
            except Exception as error:
                # Whatever a user's function raises ends its request, and nothing else.
                step.errors[row] = f"the logits processor `{_name(function)}` failed: {_reason(error)}"
                break


class _WrongScoresError(Exception):
    """A processor returned something that is not scores."""


def _called(function: Callable[[Any, Any], Any], ids: Tensor, before: Tensor) -> Tensor:
    scores = function(ids, before)
    if not isinstance(scores, torch.Tensor):
        raise _WrongScoresError(f"it returned {type(scores).__name__}, not a tensor")
    if scores.shape != before.shape:
        raise _WrongScoresError(f"it returned shape {list(scores.shape)}, not {list(before.shape)}")
    if not (scores < torch.inf).all():
        raise _WrongScoresError("it returned NaN or infinity")
    return scores


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _WrongScoresError) else f"{type(error).__name__}: {error}"


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
