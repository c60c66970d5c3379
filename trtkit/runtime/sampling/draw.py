"""Tokens out of scores: the largest, or by inverse CDF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    Array = np.ndarray[Any, Any]


def largest(scores: Tensor) -> tuple[Array, Array]:
    """Return the first of the largest scores in each row of [R, V], and it: [R] each. NaN counts as largest."""
    if scores.device.type == "cpu":
        host = scores.numpy()  # NumPy's argmax is several times as fast as torch's
        tokens = host.argmax(-1)
        return tokens, host[np.arange(len(host)), tokens]
    best = scores.argmax(-1, keepdim=True)
    both = torch.cat([best.double(), scores.gather(-1, best).double()], -1).cpu().numpy()
    return both[:, 0].astype("int64"), both[:, 1]


def draw(scores: Tensor, uniform: Array) -> tuple[Tensor, Tensor]:
    """Return for each row of scores [R, W] the place where its CDF passes `uniform` [R], and the CDF's end.

    The end is NaN or 0 where nothing can be drawn. The CDF is summed in fp64, in the order of the row, so that a row's
    place depends on nothing but the row. Scores of -inf are never drawn, whatever the number.
    """
    cdf = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
    end = cdf[:, -1:].contiguous()
    target = torch.from_numpy(uniform).to(scores.device).unsqueeze(-1) * end
    # Rounding may bring the product to the end itself, past every token.
    target = target.minimum(torch.nextafter(end, torch.zeros_like(end)))
    places = torch.searchsorted(cdf, target, right=True).clamp(max=scores.shape[-1] - 1)
    return places.squeeze(-1), end.squeeze(-1)
