"""Tokens from scores by temperature and filters: narrow rows are sorted all at once, wide ones computed one by one.

The filters of sorted rows have transformers' formulas (`logits_process.py`, 5.23). They take scores [R, W] in the order
of token ids, -inf for removed tokens, and numbers [R, 1]; a row whose number is neutral keeps every token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.sampling.columns import Columns, Use
from trtkit.llm.sampling.draw import FIRST_GROUP, GROUP, draw, keys_of, noise, winner
from trtkit.llm.sampling.sampled import FAILED, NOTHING
from trtkit.llm.sampling.wide_rows import Filters, Workspace, row_weights
from trtkit.runtime.device import is_on_host, to_device

if TYPE_CHECKING:
    from torch import Tensor

    from trtkit.arrays import Array

NEVER = -torch.inf
NARROW = 1024
"""Rows up to this width are sorted, all at once."""


def drawn(scores: Tensor, slots: Array, columns: Columns, uniform: Array) -> Tensor:
    """Return the token of each row of scores [R, V] of `slots`; FAILED or NOTHING if a row has none."""
    if _is_sorted(scores):
        return draw(filtered(scores, slots, columns), uniform)
    host, space, keys = scores.numpy(), Workspace(scores.shape[1]), keys_of(uniform)
    group_noise = noise(keys, FIRST_GROUP + np.arange(-(-scores.shape[1] // GROUP)))
    groups, inside, failed = np.zeros(len(slots), np.int64), np.zeros((len(slots), GROUP)), {}
    for row, numbers in enumerate(Filters.of(slots, columns)):
        weights = row_weights(host[row], numbers, space)
        if weights is not None:
            groups[row] = weights.race(group_noise[row], inside[row])
        else:
            failed[row] = NOTHING if host[row].max() == -np.inf else FAILED
    tokens = winner(inside, groups, keys, np.arange(GROUP))
    tokens[list(failed)] = list(failed.values())
    return torch.from_numpy(tokens)


def filtered(scores: Tensor, slots: Array, columns: Columns, least: int = 1) -> Tensor:
    """Return scores [R, V] of `slots` divided by their temperatures, -inf for tokens that the filters remove.

    least: how many of the most likely tokens top_k, top_p and min_p must keep.
    """
    tempered = scores / to_device(columns["temperature"][slots, None], scores.device)
    if least > 1:
        best = tempered.topk(min(least, tempered.shape[1]))
        return filtered(scores, slots, columns).scatter(-1, best.indices, best.values)
    if _is_sorted(scores):
        return _all_at_once(tempered, slots, columns)
    host, space = scores.numpy(), Workspace(scores.shape[1])
    for row, numbers in enumerate(Filters.of(slots, columns)):
        weights = row_weights(host[row], numbers, space) if numbers.is_used else None
        if weights is not None:
            removed = np.ones(scores.shape[1], np.bool_)
            removed[weights.tokens(np.flatnonzero(weights.values))] = False
            tempered[row].masked_fill_(torch.from_numpy(removed), NEVER)
    return tempered


def _is_sorted(scores: Tensor) -> bool:
    """Whether rows are sorted all at once: narrow ones, and those on a device, so that the host does not wait."""
    return scores.shape[1] <= NARROW or not is_on_host(scores)


def _all_at_once(scores: Tensor, slots: Array, columns: Columns) -> Tensor:
    """Apply the filters that a row uses, in transformers' order."""
    used = int(np.bitwise_or.reduce(columns.uses[slots]))

    def numbers(column: Array) -> Tensor:
        return to_device(column[slots, None], scores.device)

    if used & Use.TOP_K:
        scores = top_k(scores, numbers(columns["top_k"]))
    if used & Use.TOP_P:
        scores = top_p(scores, numbers((1 - columns["top_p"]).astype(np.float32)))
    if used & Use.MIN_P:
        scores = min_p(scores, numbers(columns["min_p"]))
    if used & Use.TYPICAL:
        scores = typical(scores, numbers(columns["typical_p"]))
    return scores


def top_k(scores: Tensor, k: Tensor) -> Tensor:
    """Keep the k largest scores and ties with the smallest of them (TopKLogitsWarper). k: int64; 0 keeps all."""
    width = scores.shape[-1]
    index = torch.where(k == 0, width, k).clamp(max=width) - 1
    least = scores.sort(-1, descending=True).values.gather(-1, index)
    return scores.masked_fill(scores < least, NEVER)


def top_p(scores: Tensor, below: Tensor) -> Tensor:
    """Keep the fewest tokens whose probabilities reach top_p (TopPLogitsWarper; arXiv:1904.09751).

    below: 1 - top_p, the mass that may be removed; 0 keeps all.
    """
    order, indices = scores.sort(dim=-1, stable=True)
    remove = (order.softmax(-1).cumsum(-1) <= below) & (below > 0)
    remove[:, -1] = False
    return scores.masked_fill(remove.scatter(-1, indices, remove), NEVER)


def min_p(scores: Tensor, ratio: Tensor) -> Tensor:
    """Keep tokens at least `ratio` as likely as the most likely one (MinPLogitsWarper; arXiv:2407.01082)."""
    probabilities = scores.softmax(-1)
    return scores.masked_fill(probabilities < ratio * probabilities.amax(-1, keepdim=True), NEVER)


def typical(scores: Tensor, mass: Tensor) -> Tensor:
    """Keep tokens whose surprise is closest to the entropy, up to `mass` (TypicalLogitsWarper; arXiv:2202.00666)."""
    logs, probabilities = scores.log_softmax(-1), scores.softmax(-1)
    # Cumulative sums add each row in a fixed order; the order of reductions depends on the number of rows.
    entropy = -(logs * probabilities).nan_to_num(0.0, 0.0, 0.0).cumsum(-1, dtype=torch.float64)[:, -1:].float()
    order, indices = (-logs - entropy).abs().sort(dim=-1, stable=True)
    reached = scores.gather(-1, indices).softmax(-1).cumsum(-1) < mass
    last = reached.sum(-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
    remove = (order > order.gather(-1, last)) & (mass < 1)
    remove[:, 0] = False
    return scores.masked_fill(remove.scatter(-1, indices, remove), NEVER)
