"""Beam search: which continuations of which beams go on, and when no better answer can come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trtkit.llm.scheduler.request import Hypothesis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtkit.llm.sampling.settings import Settings

# What represents "never" in sums of log probabilities; transformers' value, so that ties break as they do there.
_NEVER = -1.0e9


@dataclass(frozen=True)
class Continuation:
    """The beams' next step: the beam that each goes on from, and its token."""

    parents: list[int]
    tokens: list[int]


class BeamSearch:
    """One request's beams. Scores are sums of log probabilities in fp32.

    The candidates kept at each step, the length penalty and the three kinds of early stopping are those of
    transformers' `GenerationMixin._beam_search` (5.x), so that the same tokens come out.
    """

    def __init__(self, settings: Settings, max_new_tokens: int) -> None:
        self._params, self._max_length = settings.params, max_new_tokens
        self._stops = torch.tensor(settings.stop_ids, dtype=torch.int64)
        self._kept = max(2, 1 + len(settings.stop_ids)) * settings.params.num_beams
        self._scores = torch.zeros(1)
        self._finished: list[Hypothesis] = []
        self._length = 0

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The answers so far, best first."""
        return tuple(self._finished)

    def advance(self, log_probs: torch.Tensor, histories: Sequence[Sequence[int]]) -> Continuation | None:
        """Take the next tokens' processed log probabilities [beams, V]; return how to go on, None at the end.

        Without an answer among `hypotheses` the end is a dead one: no token was allowed.

        histories: what each beam has generated. At the first step there is one beam, the prompt.
        """
        count, vocab_size = self._params.num_beams, log_probs.shape[1]
        self._length += 1
        totals = (log_probs.cpu() + self._scores[:, None]).flatten()
        best = totals.topk(min(self._kept, totals.numel()))
        parents, tokens = best.indices // vocab_size, best.indices % vocab_size
        can = torch.isfinite(best.values)  # a guide may leave fewer ways to go on than there are beams
        ends = torch.isin(tokens, self._stops) | (self._length >= self._max_length)
        running = (best.values + ends * _NEVER).topk(min(count, int(can.sum())))
        self._collect(
            Hypothesis(
                [*histories[int(parents[index])], int(tokens[index])],
                float(best.values[index] / self._length**self._params.length_penalty),
            )
            for index in torch.nonzero((ends & can)[:count]).flatten().tolist()
        )
        self._scores = running.values
        if not len(self._scores) or self._is_done() or bool(ends[can].all()):
            return None
        return Continuation(parents[running.indices].tolist(), tokens[running.indices].tolist())

    def _collect(self, hypotheses: Iterable[Hypothesis]) -> None:
        """Keep the answers of one step that are among the best; none more where early stopping has enough."""
        count = self._params.num_beams
        if self._params.early_stopping is not True or len(self._finished) < count:
            self._finished = sorted([*self._finished, *hypotheses], key=lambda item: -item.score)[:count]

    def _is_done(self) -> bool:
        """Whether no running beam can better the answers, as `early_stopping` judges that."""
        params = self._params
        if len(self._finished) < params.num_beams:
            return False
        if params.early_stopping is True:
            return True
        is_open = params.early_stopping == "never" and params.length_penalty > 0
        length = self._max_length if is_open else self._length
        return float(self._scores[0] / length**params.length_penalty) <= self._finished[-1].score


def place(
    parents: Sequence[int], slots: Sequence[int], spare: Sequence[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return a slot for each next beam and the copies (source, target) to make, as few as can be.

    slots: of the beams until now; spare: those that no beam is in. A beam's first successor stays in its slot; others
    go to spare ones and to those whose beams have no successor.
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
