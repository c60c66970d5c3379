"""SmoothQuant: which layers' inputs one int8 scale fits, and which keep 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trtkit.quantization_methods import FORMATS

if TYPE_CHECKING:
    from trtkit.quantization.llm.calibration import Measured, Statistics
    from trtkit.quantization.llm.choice import Layer

SMOOTHING = 0.8
"""SmoothQuant's alpha, where none is asked for: how much of the inputs' range goes over to the weights."""

TOLERATED = 0.0025
"""Mean squared relative error of outputs, from rounding inputs, up to which a layer's inputs are rounded."""


def kept_in_16_bits(weights: dict[Layer, torch.Tensor], measured: Measured, alpha: float) -> set[Layer]:
    """Return the layers whose inputs no int8 scale fits, with all that share these inputs. weights: [out, in] each."""
    seen = {layer: measured.layers[layer.name] for layer in weights}
    kept = [seen[layer].squares for layer in weights if rounding_error(seen[layer], weights[layer], alpha) > TOLERATED]
    return {layer for layer in weights if any(torch.equal(seen[layer].squares, squares) for squares in kept)}


def rounding_error(statistics: Statistics, weight: torch.Tensor, alpha: float) -> float:
    """Return what rounding a layer's smoothed inputs to int8 does to its outputs: the mean squared relative error.

    A channel's error is a step's, uniformly spread, or all of it where it is below a step. Tokens weigh alike, so that
    outputs of outliers do not hide what is lost by the others. weight: [out, in].
    """
    peaks, width = statistics.peaks.clamp(min=_TINY), weight.abs().amax(0).clamp(min=_TINY)
    scale = width ** (1 - alpha) / peaks**alpha
    step = float((peaks * scale).max()) / FORMATS["int8"].largest
    error = torch.minimum(statistics.squares * scale**2, torch.full_like(scale, step**2 / 12))
    return float((error * (weight / scale).square().sum(0)).sum()) * statistics.inverse_outputs


_TINY = 1e-5
