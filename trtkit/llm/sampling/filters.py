"""The filters of sampling on rows that are sorted, with transformers' formulas (`logits_process.py`, 5.23).

All take scores [R, W] in the order of token ids, -inf if there is none, and numbers [R, 1]; rows whose number is
neutral keep every token.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = -torch.inf


def top_k(scores: Tensor, k: Tensor) -> Tensor:
    """Keep the k largest scores and those equal to the smallest of them (TopKLogitsWarper). k: int64, 0 keeps all."""
    width = scores.shape[-1]
    index = torch.where(k == 0, width, k).clamp(max=width) - 1
    least = scores.sort(-1, descending=True).values.gather(-1, index)
    return scores.masked_fill(scores < least, NEVER)


def top_p(scores: Tensor, below: Tensor) -> Tensor:
    """Keep the fewest tokens whose probabilities reach top_p (TopPLogitsWarper; arXiv:1904.09751).

    below: 1 - top_p, the mass that may go, 0 keeps all.
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
    # Cumulative sums add each row in its own order; reductions would depend on how many rows there are.
    entropy = -(logs * probabilities).nan_to_num(0.0, 0.0, 0.0).cumsum(-1, dtype=torch.float64)[:, -1:].float()
    order, indices = (-logs - entropy).abs().sort(dim=-1, stable=True)
    reached = scores.gather(-1, indices).softmax(-1).cumsum(-1) < mass
    last = reached.sum(-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
    remove = (order > order.gather(-1, last)) & (mass < 1)
    remove[:, 0] = False
    return scores.masked_fill(remove.scatter(-1, indices, remove), NEVER)
