"""Which tokens of a row its filters could keep at all: bounds that are cheap to find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trtkit.runtime.sampling import filters
from trtkit.runtime.sampling.columns import Columns, Use

if TYPE_CHECKING:
    from trtkit.arrays import Array

BLOCK = 64  # tokens whose largest score is taken together
_TAIL_PASSES = 2
_MARGIN = 0.98  # of the mass that may go, for rounding
_LEAST = torch.finfo(torch.float32).min  # above -inf only


def rows_of(scores: Tensor, rows: Array) -> Tensor:
    """Return some rows, without a copy where they are all."""
    return scores if len(rows) == len(scores) else scores[torch.from_numpy(rows).to(scores.device)]


@dataclass(frozen=True)
class Numbers:
    """Each row's numbers [R, 1], neutral where a filter is not used."""

    uses: Array
    top_k: Array
    below: Array
    min_p: Array
    typical: Array

    @classmethod
    def of(cls, slots: Array, columns: Columns) -> Numbers:
        """Return the numbers of the rows' slots."""
        below = (1 - columns["top_p"][slots, None]).astype(np.float32)
        others = (columns[name][slots, None] for name in ("min_p", "typical_p"))
        return cls(columns.uses[slots], columns["top_k"][slots, None], below, *others)

    @property
    def only_top_p(self) -> Array:
        """Rows that use top-p without top-k."""
        return (self.uses & int(Use.TOP_K | Use.TOP_P)) == int(Use.TOP_P)  # type: ignore[no-any-return]

    def apply(self, scores: Tensor, rows: Array, dropped: Tensor) -> Tensor:
        """Apply the filters that one of `rows` uses, in transformers' order."""
        used = int(np.bitwise_or.reduce(self.uses[rows]))

        def at(column: Array) -> Tensor:
            return torch.from_numpy(column[rows]).to(scores.device)

        if used & Use.TOP_K:
            scores = filters.top_k(scores, at(self.top_k))
        if used & Use.TOP_P:
            scores = filters.top_p(scores, at(self.below), dropped)
        if used & Use.MIN_P:
            scores = filters.min_p(scores, at(self.min_p))
        if used & Use.TYPICAL:
            scores = filters.typical(scores, at(self.typical))
        return scores


def least_scores(scores: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor | None]:
    """Return a score [R, 1] below which a row's filters keep nothing, and the probabilities where top-p needed them.

    top-k: the k-th largest of the largest scores of blocks of tokens; k scores at least are not below it.
    top-p: all tokens below (1 - top_p) / V together have less than the mass that goes. min-p: its own limit.
    """
    least = scores.new_full((len(scores), 1), _LEAST)
    of_k = np.flatnonzero(numbers.uses & int(Use.TOP_K))
    of_p = np.flatnonzero(numbers.only_top_p)
    of_min = np.flatnonzero((numbers.uses & int(Use.TOP_K | Use.TOP_P | Use.MIN_P)) == int(Use.MIN_P))
    if of_k.size:
        least[of_k] = _block_least(scores, of_k, numbers.top_k[of_k])
    probabilities = scores.softmax(-1) if of_p.size else None
    largest = scores.amax(-1, keepdim=True)
    if probabilities is not None:
        # log p = score - largest + log p(largest); a little is left for rounding.
        log_top = probabilities.amax(-1, keepdim=True).log()
        floor = torch.from_numpy(np.log(numbers.below[of_p] / scores.shape[1])).to(scores.device) - 0.01
        least[of_p] = largest[of_p] + floor - log_top[of_p]
    if of_min.size:
        limit = torch.from_numpy(np.log(numbers.min_p[of_min])).to(scores.device) - 0.01
        least[of_min] = largest[of_min] + limit
    # A row with NaN or infinity keeps nothing, wherever it stands: it fails when it is drawn from.
    return least.clamp_(min=_LEAST) + largest * 0, probabilities


def _block_least(scores: Tensor, rows: Array, k: Array) -> Tensor:
    """Return [r, 1], not above the k-th largest score of each of `rows`."""
    blocks = scores.shape[1] // BLOCK
    tops = rows_of(scores, rows)[:, : blocks * BLOCK].reshape(len(rows), blocks, BLOCK).amax(-1)
    most = min(int(k.max()), blocks)
    ordered = tops.topk(most).values
    places = torch.from_numpy(np.minimum(k, most) - 1).to(scores.device)
    enough = torch.from_numpy(k <= blocks).to(scores.device)
    return torch.where(enough, ordered.gather(-1, places), _LEAST)


def at_least(scores: Tensor, least: Tensor) -> tuple[Array, Array]:
    """Return rows and token ids of scores that are not below `least` [R, 1], in order."""
    if scores.device.type == "cpu":
        flat = np.flatnonzero(scores.numpy() >= least.numpy())
        row_of = flat // scores.shape[1]
        return row_of, flat - row_of * scores.shape[1]
    places = (scores >= least).nonzero().cpu().numpy()
    return places[:, 0], places[:, 1]


def without_tail(probabilities: Tensor, row_of: Array, ids: Array, numbers: Numbers) -> tuple[Array, Array]:
    """Leave out more of the tokens that top-p cannot keep, where it is used without top-k.

    C candidates below (mass that may still go) / C have less than that mass together, however it is spread; with fewer
    candidates the limit is higher. The sums run over one row at a time, in the order of its tokens.
    """
    place = torch.from_numpy(row_of).to(probabilities.device), torch.from_numpy(ids).to(probabilities.device)
    mass = probabilities[place].cpu().numpy().astype(np.float64)
    rows = len(numbers.uses)
    for _ in range(_TAIL_PASSES):
        counts = np.bincount(row_of, minlength=rows)
        gone = 1 - np.bincount(row_of, mass, rows)
        limit = np.where(numbers.only_top_p, _MARGIN * (numbers.below[:, 0] - gone) / np.maximum(counts, 1), -1)
        kept = mass >= limit[row_of]
        row_of, ids, mass = row_of[kept], ids[kept], mass[kept]
    return row_of, ids
