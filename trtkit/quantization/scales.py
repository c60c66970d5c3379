"""The search for the scale with which rounding loses least."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def least_error(
    scales: torch.Tensor, factors: Iterable[float], error: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return each scale times the factor of least error, the first of those that are alike.

    error: of scales, in their shape, what each loses.
    """
    best, lowest = scales, torch.full_like(scales, float("inf"))
    for factor in factors:
        tried = factor * scales
        errors = error(tried)
        best, lowest = torch.where(errors < lowest, tried, best), torch.minimum(errors, lowest)
    return best
