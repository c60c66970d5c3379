"""Beam search: which continuations survive a step, and when no running beam can improve on the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trtkit.llm.scheduler.request import Hypothesis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtkit.llm.sampling.settings import Settings

# Minus infinity in sums of log probabilities: transformers' value, so that ties break as they do there.
_NEVER = -1.0e9


@dataclass(frozen=True)
class Continuation:
    """The next step of all beams: the parent and the token of each."""

    parents: list[int]
    tokens: list[int]


class BeamSearch:
    """One request's beams, in groups of one size. Scores are sums of log probabilities in fp32.

    The candidates kept at each step, the length penalty and the three kinds of early stopping follow transformers'
    `GenerationMixin._beam_search` (5.x), so that the same tokens come out. Groups are searched one after the other
    (diverse beam search, arXiv:1610.02424).
    """

    def __init__(self, settings: Settings, max_new_tokens: int) -> None:
        self._penalty = settings.params.diversity_penalty
        self._groups = [_Beams(settings, max_new_tokens) for _ in range(settings.params.num_beam_groups)]

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The answers so far, best first."""
        answers = [answer for group in self._groups for answer in group.finished]
        return tuple(sorted(answers, key=lambda answer: -answer.score))

    def advance(self, log_probs: torch.Tensor, histories: Sequence[Sequence[int]]) -> Continuation | None:
        """Choose the beams of the next step from processed log probabilities [beams, V]; None if the search is over.

        If the search is over and `hypotheses` is empty, no token was allowed.
        histories: what each beam has generated. At the first step there is one beam, the prompt.
        """
        scores, chosen = log_probs.cpu(), list[int]()
        parents: list[int] = []
        tokens: list[int] = []
        for group in self._groups:
            if group.is_done:
                continue
            rows, first, own_scores = group.rows, len(tokens), scores[group.rows]
            if chosen:
                times = torch.bincount(torch.tensor(chosen), minlength=scores.shape[1])
                own_scores = own_scores - self._penalty * times
            step = group.advance(own_scores, histories[rows])
            chosen += step.tokens
            if not group.is_done:
                parents += [rows.start + parent for parent in step.parents]
                tokens += step.tokens
                group.rows = slice(first, len(tokens))
        return Continuation(parents, tokens) if tokens else None


class _Beams:
    """Beams that compete with each other. rows: their positions among the request's beams.

    finished: the answers so far, best first. is_done: whether the search is over.
    """

    def __init__(self, settings: Settings, max_new_tokens: int) -> None:
        self._params, self._max_length = settings.params, max_new_tokens
        self._count = settings.params.num_beams // settings.params.num_beam_groups
        self._stops = torch.tensor(settings.stop_ids, dtype=torch.int64)
        self._kept = candidates_of_each(settings) * self._count
        self._scores = torch.zeros(1)
        self._length = 0
        self._generator = torch.Generator().manual_seed(settings.seed) if settings.params.draws else None
        self.rows, self.is_done = slice(0, 1), False
        self.finished: list[Hypothesis] = []

    def advance(self, log_probs: torch.Tensor, histories: Sequence[Sequence[int]]) -> Continuation:
        """Choose the group's next beams from log probabilities [beams, V], also if the search is over with them."""
        vocab_size = log_probs.shape[1]
        self._length += 1
        totals, indices = self._candidates((log_probs + self._scores[:, None]).flatten(), self._count * vocab_size)
        parents, tokens = indices // vocab_size, indices % vocab_size
        can = torch.isfinite(totals)  # a guide may allow fewer continuations than there are beams
        stops = torch.isin(tokens, self._stops)
        ends = stops | (self._length >= self._max_length)
        running = (totals + stops * _NEVER).topk(min(self._count, int(can.sum())))
        self._collect(
            Hypothesis(
                [*histories[int(parents[index])], int(tokens[index])],
                float(totals[index] / self._length**self._params.length_penalty),
            )
            for index in torch.nonzero((ends & can)[: self._count]).flatten().tolist()
        )
        self._scores = running.values
        self.is_done = not len(self._scores) or bool(ends[can].all()) or self._is_beaten()
        return Continuation(parents[running.indices].tolist(), tokens[running.indices].tolist())

    def _candidates(self, totals: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and flat indices of candidate continuations: the best, best first, or a random sample.

        most: the number of continuations of all beams. The sample is drawn from as many, so that a seed gives the
        tokens it gives in transformers.
        """
        if self._generator is None:
            best = totals.topk(min(self._kept, totals.numel()))
            return best.values, best.indices
        chances = torch.nn.functional.pad(totals, (0, most - totals.numel()), value=_NEVER).softmax(0).nan_to_num(0.0)
        count = min(self._kept, int(torch.count_nonzero(chances)))
        if not count:
            return totals[:0], torch.zeros(0, dtype=torch.int64)
        drawn = torch.multinomial(chances, count, generator=self._generator)
        return totals[drawn], drawn

    def _collect(self, hypotheses: Iterable[Hypothesis]) -> None:
        """Add a step's answers and keep the best; with `early_stopping=True`, add none once there are enough."""
        if self._params.early_stopping is not True or len(self.finished) < self._count:
            self.finished = sorted([*self.finished, *hypotheses], key=lambda item: -item.score)[: self._count]

    def _is_beaten(self) -> bool:
        """Whether no running beam can improve on the answers, by the rule that `early_stopping` selects."""
        params = self._params
        if len(self.finished) < self._count:
            return False
        if params.early_stopping is True:
            return True
        is_open = params.early_stopping == "never" and params.length_penalty > 0
        length = self._max_length if is_open else self._length
        return float(self._scores[0] / length**params.length_penalty) <= self.finished[-1].score


def candidates_of_each(settings: Settings) -> int:
    """Return how many candidates per beam to keep: enough that one does not end the answer."""
    return max(2, 1 + len(settings.stop_ids))


def place(
    parents: Sequence[int], slots: Sequence[int], spare: Sequence[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return a slot for each next beam, and the fewest cache copies (source, target) that this takes.

    slots: those of the current beams. spare: slots without a beam. A beam's first successor keeps its slot; the others
    get spare slots or those of beams without a successor.
    """
    kept = {slots[parent] for parent in parents}
    vacant = [*(slot for slot in slots if slot not in kept), *spare]
    taken: set[int] = set()
    placed, copies = [], []
    for parent in parents:
        source = slots[parent]
        target = source if source not in taken else vacant.pop()
        if target != source:
            copies.append((source, target))
        taken.add(target)
        placed.append(target)
    return placed, copies
