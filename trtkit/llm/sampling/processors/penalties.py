"""What is added to scores and what repetition costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.llm.sampling.columns import Use

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.llm.sampling.processors.step import SamplingStep


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
    """Multiply negative scores of tokens in prompt and answer by the penalty, divide the others by it.

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
        """Count what a slot has generated before."""
        if self._counts is None:
            self._counts = np.zeros(self._shape, np.int32)
        known = generated[generated < self._shape[1]]
        self._counts[slot] = np.bincount(known, minlength=self._shape[1])

    def copy(self, source: int, target: int) -> None:
        """Make the counts of `target` those of `source`."""
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
