"""Tokens out of scores by temperature and filters: narrow rows all at once, wide ones one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.sampling import filters
from trtkit.llm.sampling.columns import Columns, Use
from trtkit.llm.sampling.draw import draw
from trtkit.llm.sampling.sampled import FAILED, NOTHING
from trtkit.llm.sampling.weights import Filters, Workspace, row_weights
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from trtkit.arrays import Array

NARROW = 1024
"""Rows up to this width are sorted, all at once."""


def drawn(scores: Tensor, slots: Array, columns: Columns, uniform: Array) -> Tensor:
    """Return the token of each row of scores [R, V] of `slots`, FAILED or NOTHING for a row without one."""
    if _is_sorted(scores):
        return draw(filtered(scores, slots, columns), uniform)
    tokens, host, space = np.zeros(len(slots), np.int64), scores.numpy(), Workspace(scores.shape[1])
    for row, numbers in enumerate(Filters.of(slots, columns)):
        weights = row_weights(host[row], numbers, space)
        if weights is not None:
            tokens[row] = weights.pick(uniform[row])
        else:
            tokens[row] = NOTHING if host[row].max() == -np.inf else FAILED
    return torch.from_numpy(tokens)


def filtered(scores: Tensor, slots: Array, columns: Columns) -> Tensor:
    """Return scores [R, V] of `slots` divided by their temperatures, -inf where the filters remove a token."""
    tempered = scores / to_device(columns["temperature"][slots, None], scores.device)
    if _is_sorted(scores):
        return _all_at_once(tempered, slots, columns)
    host, space = scores.numpy(), Workspace(scores.shape[1])
    for row, numbers in enumerate(Filters.of(slots, columns)):
        weights = row_weights(host[row], numbers, space) if numbers.is_used else None
        if weights is not None:
            removed = np.ones(scores.shape[1], np.bool_)
            removed[weights.tokens(np.flatnonzero(weights.values))] = False
            tempered[row].masked_fill_(torch.from_numpy(removed), filters.NEVER)
    return tempered


def _is_sorted(scores: Tensor) -> bool:
    """Whether rows are sorted all at once: narrow ones, and those on a device, which the host does not wait for."""
    return scores.shape[1] <= NARROW or scores.device.type != "cpu"


def _all_at_once(scores: Tensor, slots: Array, columns: Columns) -> Tensor:
    """Apply the filters that a row uses, in transformers' order."""
    used = int(np.bitwise_or.reduce(columns.uses[slots]))

    def numbers(column: Array) -> Tensor:
        return to_device(column[slots, None], scores.device)

    if used & Use.TOP_K:
        scores = filters.top_k(scores, numbers(columns["top_k"]))
    if used & Use.TOP_P:
        scores = filters.top_p(scores, numbers((1 - columns["top_p"]).astype(np.float32)))
    if used & Use.MIN_P:
        scores = filters.min_p(scores, numbers(columns["min_p"]))
    if used & Use.TYPICAL:
        scores = filters.typical(scores, numbers(columns["typical_p"]))
    return scores
