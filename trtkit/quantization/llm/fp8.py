"""FP8 with a scale for each row: the scale with which rounding the weights loses least."""

from __future__ import annotations

import torch

from trtkit.quantization.scales import least_error
from trtkit.quantization_methods import FORMATS

_FACTORS = [2 ** (step / 16) for step in range(16)]
_TINY = 1e-12


def least_error_scales(weight: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Return a scale for each row of a weight, [out, 1]: at least what its largest number needs, less than twice that.

    A float's steps double from one power of two to the next, so a scale moves the rare large weights, which cost most,
    nearer to a step or further from it. weight: [out, in]; squares: mean squares of the inputs that meet each column,
    [in], by which errors weigh.
    """
    least = weight.abs().amax(1, keepdim=True).clamp(min=_TINY) / FORMATS["fp8"].largest

    def error(scales: torch.Tensor) -> torch.Tensor:
        rounded = (weight / scales).to(torch.float8_e4m3fn).float() * scales
        return ((rounded - weight).square() * squares).sum(1, keepdim=True)

    return least_error(least, _FACTORS, error)
