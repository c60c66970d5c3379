"""The few tokens of a row that its filters can keep, so that no row is sorted whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trtkit.runtime.sampling import filters
from trtkit.runtime.sampling.bounds import BLOCK, Numbers, at_least, least_scores, rows_of, without_tail
from trtkit.runtime.sampling.columns import FILTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.arrays import Array
    from trtkit.runtime.sampling.columns import Columns

# Rows this wide are filtered whole, so that candidates need not be found.
WHOLE = 1024


@dataclass(frozen=True)
class Kept:
    """What the filters keep of some rows: scores [r, W] in the order of token ids, -inf elsewhere.

    rows: [r], in the scores that were filtered. ids: [r, W], the tokens of the scores; None: all, W is V.
    """

    rows: Array
    scores: Tensor
    ids: Tensor | None

    def tokens(self, places: Tensor) -> Tensor:
        """Return the tokens at places [r]."""
        return places if self.ids is None else self.ids.gather(-1, places.unsqueeze(-1)).squeeze(-1)

    def write(self, scores: Tensor, rows: Tensor) -> None:
        """Write what is kept into rows [r] of scores [R, V], -inf elsewhere."""
        if self.ids is None:
            scores[rows] = self.scores
            return
        scores[rows] = filters.NEVER
        row, place = (self.scores > filters.NEVER).nonzero(as_tuple=True)
        scores[rows[row], self.ids[row, place]] = self.scores[row, place]


def filtered(scores: Tensor, slots: Array, columns: Columns) -> Iterator[Kept]:
    """Filter scores [R, V] of `slots`, rows of about as many candidates together.

    How wide a row is computed depends on nothing but the row: its sums are the same whatever other rows there are.
    """
    used = (columns.uses[slots] & int(FILTERS)) > 0
    if not used.all():
        plain = np.flatnonzero(~used)
        yield Kept(plain, rows_of(scores, plain), None)
    rows = np.flatnonzero(used)
    if not rows.size:
        return
    numbers = Numbers.of(slots[rows], columns)
    for kept in _kept(rows_of(scores, rows), numbers):
        yield Kept(rows[kept.rows], kept.scores, kept.ids)


def _kept(scores: Tensor, numbers: Numbers) -> Iterator[Kept]:
    if scores.shape[1] <= WHOLE:
        yield _whole(scores, np.arange(len(scores)), numbers)
        return
    least, probabilities = least_scores(scores, numbers)
    row_of, ids = at_least(scores, least)
    if probabilities is not None:
        row_of, ids = without_tail(probabilities, row_of, ids, numbers)
    selection = _Selection(scores, probabilities, row_of, ids, numbers)
    widths = selection.widths()
    narrow = widths * 2 <= scores.shape[1]
    for width in np.unique(widths[narrow]):
        rows = np.flatnonzero((widths == width) & narrow)
        candidates, tokens, dropped = selection.padded(rows, int(width))
        yield Kept(rows, numbers.apply(candidates, rows, dropped), tokens)
    if not narrow.all():
        yield _whole(scores, np.flatnonzero(~narrow), numbers)


def _whole(scores: Tensor, rows: Array, numbers: Numbers) -> Kept:
    chosen = rows_of(scores, rows)
    return Kept(rows, numbers.apply(chosen, rows, torch.zeros_like(chosen[:, :1])), None)


@dataclass(frozen=True)
class _Selection:
    """Candidates of all rows, one behind another."""

    scores: Tensor
    probabilities: Tensor | None
    row_of: Array
    ids: Array
    numbers: Numbers

    def widths(self) -> Array:
        """Return how wide each row is computed: a block, doubled until its candidates fit."""
        blocks = np.maximum(self.counts, BLOCK) / BLOCK
        return BLOCK << np.ceil(np.log2(blocks)).astype(np.int64)

    @cached_property
    def counts(self) -> Array:
        """How many candidates each row has."""
        return np.bincount(self.row_of, minlength=len(self.scores))

    def padded(self, rows: Array, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and ids [r, W] of the candidates of `rows`, and the mass [r, 1] of others that top-p counts."""
        device = self.scores.device
        starts = np.cumsum(self.counts) - self.counts
        there = np.arange(width) < self.counts[rows, None]
        ids = np.zeros(there.shape, np.int64)
        ids[there] = self.ids[(starts[rows, None] + np.arange(width))[there]]
        mask, tokens = torch.from_numpy(there).to(device), torch.from_numpy(ids).to(device)
        place = torch.from_numpy(rows).to(device).unsqueeze(-1), tokens
        scores = torch.where(mask, self.scores[place], filters.NEVER)
        if self.probabilities is None:
            return scores, tokens, torch.zeros_like(scores[:, :1])
        mass = torch.where(mask, self.probabilities[place], 0.0).cumsum(-1, dtype=torch.float64)[:, -1:]
        # Behind top-k there are no other tokens.
        counted = torch.from_numpy(self.numbers.only_top_p[rows, None]).to(device)
        return scores, tokens, torch.where(counted, (1 - mass).clamp(min=0).float(), 0.0)
