"""4-bit weights: rounding by block, AWQ's scaling of input channels, GPTQ's error compensation.

ModelOpt also has AWQ and GPTQ, but without zero points and ten times slower: it runs the model for every candidate,
while here everything follows from each layer's second moments `x^T x`, measured in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trtkit.errors import QuantizeError
from trtkit.quantized_matrix import QuantizedMatrix, pack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtkit.quantization_methods import Algorithm

_LEVELS, _LARGEST = 15, 7
_DAMPING = 0.01
_STRIPE = 128
_PARTS = torch.linspace(1, 0.6, 9).tolist()

Levels = tuple[torch.Tensor, torch.Tensor | None]
"""Scales and offsets [out, blocks]: a level is code * scale + offset, for codes from -8 to 7."""


@dataclass(frozen=True)
class Rounding:
    """How weights are rounded.

    block: columns that share a scale. has_zero_points: whether levels span the range of a block's values, rather than
    of their magnitudes.
    """

    block: int
    has_zero_points: bool = False

    def levels(self, weight: torch.Tensor) -> Levels:
        """Return the levels of a weight [out, in] that span each block's range."""
        blocks = self._blocks(weight)
        if not self.has_zero_points:
            return (blocks.abs().amax(-1) / _LARGEST).clamp(min=_TINY), None
        low, high = blocks.amin(-1), blocks.amax(-1)
        scales = ((high - low) / _LEVELS).clamp(min=_TINY)
        return scales, low + 8 * scales

    def nearest_levels(self, weight: torch.Tensor, squares: torch.Tensor) -> Levels:
        """Return the levels of least error, which span a part of each block's range and clip the rest.

        squares: mean squares of each column's inputs, [in], which weight the errors.
        """
        blocks, weights = self._blocks(weight), squares.reshape(1, -1, self.block)
        scales, offsets = self.levels(weight)
        middle = torch.zeros_like(scales) if offsets is None else offsets - scales / 2

        def error(tried: torch.Tensor) -> torch.Tensor:
            centre = None if offsets is None else (middle + tried / 2)[..., None]
            rounded = round_to(blocks, tried[..., None], centre) * tried[..., None]
            return ((blocks - rounded - (0 if centre is None else centre)).square() * weights).sum(-1)

        best = least_error(scales, _PARTS, error)
        return best, None if offsets is None else middle + best / 2

    def _blocks(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.reshape(len(weight), -1, self.block)


def round_to(weight: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
    """Return the codes, -8 to 7, nearest to the weights; scales and offsets broadcast."""
    centred = weight if offsets is None else weight - offsets
    return torch.round(centred / scales).clamp(-8, _LARGEST)


def matrix_of(codes: torch.Tensor, levels: Levels, factors: torch.Tensor | None = None) -> QuantizedMatrix:
    """Return codes [out, in] with scales and offsets [out, blocks] as a matrix. factors: for its inputs, [in]."""
    scales, offsets = levels
    return QuantizedMatrix(
        "int4",
        pack(codes.to(torch.int8).numpy()),
        scales.numpy(),
        offsets=None if offsets is None else offsets.numpy(),
        input_factors=None if factors is None else factors.numpy(),
    )


def nearest(weight: torch.Tensor, rounding: Rounding) -> QuantizedMatrix:
    """Round a weight [out, in] to the nearest levels of its full range."""
    levels = rounding.levels(weight)
    return matrix_of(round_to(weight, *_by_column(*levels, rounding.block)), levels)


def awq(weight: torch.Tensor, moments: torch.Tensor, rounding: Rounding, factors: torch.Tensor) -> QuantizedMatrix:
    """Round a weight [out, in], its columns divided by the factors of its inputs, to the levels of least error.

    moments: x^T x [in, in].
    """
    scaled = weight / factors
    levels = rounding.nearest_levels(scaled, moments.diagonal() * factors.square())
    return matrix_of(round_to(scaled, *_by_column(*levels, rounding.block)), levels, factors)


def awq_factors(weights: Sequence[torch.Tensor], moments: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Return the factors [in] of the inputs shared by weights [out, in] for which rounding has the least error.

    Channels are scaled down by a power of their size, and their weights up: the best of eleven powers from 0 to 1.
    moments: x^T x [in, in]. Source: https://arxiv.org/abs/2306.00978.
    """
    sizes = moments.diagonal().sqrt().clamp(min=_TINY)
    best, least = torch.ones_like(sizes), float("inf")
    for power in torch.linspace(0, 1, 11).tolist():
        scale = sizes**power
        factors = (scale.max() * scale.min()).sqrt() / scale
        loss = sum(_loss(weight, moments, rounding, factors) for weight in weights)
        if loss < least:
            best, least = factors, loss
    return best


def gptq(weight: torch.Tensor, moments: torch.Tensor, rounding: Rounding) -> QuantizedMatrix:
    """Round the columns one by one, compensating each error in the remaining columns.

    Columns with the largest inputs come first; levels are the best ones for the original weight. moments: x^T x [in,
    in]. Source: https://arxiv.org/abs/2210.17323.
    """
    levels = rounding.nearest_levels(weight, moments.diagonal())
    scales, offsets = _by_column(*levels, rounding.block)
    order = moments.diagonal().argsort(descending=True)
    left, inverse = weight[:, order].clone(), _inverse_factor(moments[order][:, order])
    scales, offsets = scales[:, order], None if offsets is None else offsets[:, order]
    codes = torch.empty_like(left)
    for start in range(0, left.shape[1], _STRIPE):
        stop = min(start + _STRIPE, left.shape[1])
        errors = torch.empty_like(left[:, start:stop])
        for column in range(start, stop):
            here = (slice(None), slice(column, column + 1))
            offset = None if offsets is None else offsets[here]
            codes[here] = round_to(left[here], scales[here], offset)
            value = codes[here] * scales[here] + (0 if offset is None else offset)
            error = (left[here] - value) / inverse[column, column]
            left[:, column:stop] -= error * inverse[column, column:stop]
            errors[:, column - start] = error[:, 0]
        left[:, stop:] -= errors @ inverse[start:stop, stop:]
    return matrix_of(codes[:, order.argsort()], levels)


def _nearest_each(weights: Sequence[torch.Tensor], _: torch.Tensor, rounding: Rounding) -> list[QuantizedMatrix]:
    return [nearest(weight, rounding) for weight in weights]


def _awq_together(weights: Sequence[torch.Tensor], moments: torch.Tensor, rounding: Rounding) -> list[QuantizedMatrix]:
    factors = awq_factors(weights, moments, rounding)
    return [awq(weight, moments, rounding, factors) for weight in weights]


def _gptq_each(weights: Sequence[torch.Tensor], moments: torch.Tensor, rounding: Rounding) -> list[QuantizedMatrix]:
    return [gptq(weight, moments, rounding) for weight in weights]


Rounder = Callable[[Sequence[torch.Tensor], torch.Tensor, Rounding], list[QuantizedMatrix]]
ROUNDERS: dict[Algorithm, Rounder] = {"nearest": _nearest_each, "awq": _awq_together, "gptq": _gptq_each}
"""By algorithm: rounds the weights [out, in] of layers with shared inputs, whose moments are x^T x [in, in]."""


def _inverse_factor(moments: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse of damped moments.

    Raises QuantizeError if they are not invertible.
    """
    mean = float(moments.diagonal().mean())
    for damping in (_DAMPING, 10 * _DAMPING, 100 * _DAMPING):
        damped = moments + damping * mean * torch.eye(len(moments))
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            factor, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            upper: torch.Tensor = factor
        if not failed:
            return upper
    raise QuantizeError("the inputs' moments cannot be inverted", fix="give more calibration text")


def _loss(weight: torch.Tensor, moments: torch.Tensor, rounding: Rounding, factors: torch.Tensor) -> float:
    """Return the squared error of a layer's outputs from rounding, over the inputs with these moments."""
    scaled = weight / factors
    scales, offsets = _by_column(*rounding.levels(scaled), rounding.block)
    rounded = round_to(scaled, scales, offsets) * scales
    change = (scaled - (rounded if offsets is None else rounded + offsets)) * factors
    return float(((change @ moments) * change).sum())


def _by_column(scales: torch.Tensor, offsets: torch.Tensor | None, block: int) -> Levels:
    """Return scales and offsets [out, blocks] expanded to columns [out, in]."""
    return scales.repeat_interleave(block, 1), None if offsets is None else offsets.repeat_interleave(block, 1)


_TINY = 1e-8


def least_error(
    scales: torch.Tensor, factors: Iterable[float], error: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return each scale times the factor with the least error; the first such factor.

    error: returns the error of each scale, in the same shape.
    """
    best, lowest = scales, torch.full_like(scales, float("inf"))
    for factor in factors:
        tried = factor * scales
        errors = error(tried)
        best, lowest = torch.where(errors < lowest, tried, best), torch.minimum(errors, lowest)
    return best
