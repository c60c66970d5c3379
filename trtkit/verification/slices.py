"""The part of an output that is farthest from its reference: a channel, a query, a position, on its own scale.

One error over a whole output hides those of small numbers among large ones, as a detector's scores among its boxes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.verification.report import ComparisonLimits, WorstSlice

if TYPE_CHECKING:
    from trtkit.arrays import Array

# Slices may be this much farther off than the whole output, within these bounds: one whose answers are gone is off by
# its own size or more.
_TIMES, _LEAST, _MOST = 10.0, 0.05, 0.9
_LEAST_FLOOR, _MOST_FLOOR = 1e-4, 0.03
# Rows and columns of maps [B, C, H, W] hold the same unit: those with little next to the rest are background.
_MAP_FLOOR = 0.1


def limits_of(tolerance: float, slices: float | None = None) -> ComparisonLimits:
    """Return the limits that go with an output's tolerance. slices: the config's own, if it has one."""
    usual = min(max(_TIMES * tolerance, _LEAST), _MOST)
    return ComparisonLimits(tolerance, usual if slices is None else slices, floor_of(tolerance))


def floor_of(tolerance: float) -> float:
    """Return the least scale of a slice, of an output whose RMS is 1: the square of the tolerance, 1e-4 to 0.03."""
    return min(max(tolerance**2, _LEAST_FLOOR), _MOST_FLOOR)


def worst_slice(error: Array, reference: Array, floor: float) -> WorstSlice | None:
    """Return the slice of any axis but the batch's (0) whose RMS error is largest on its own scale.

    A slice's scale is the RMS of its reference; at least `floor` times the output's RMS (of 1 where that is larger, so
    that boxes in pixels do not hide scores), and for slices of few elements, whose RMS is small and whose error is
    large by chance, a multiple of the output's RMS: 4 RMS / (1 + (n / 4)^2). Of maps [B, C, H, W], rows and columns are
    measured by a tenth of the output's RMS at least. Both: finite, fp64. None for empty arrays and those of one axis.
    """
    if reference.ndim < 2 or reference.size == 0:
        return None
    squares, power = error**2, reference**2
    whole = math.sqrt(power.mean())
    slices = []
    for axis in range(1, reference.ndim):
        others = tuple(other for other in range(reference.ndim) if other != axis)
        count = reference.size // reference.shape[axis]
        stated = _MAP_FLOOR * whole if reference.ndim == 4 and axis > 1 else floor * min(whole, 1.0)
        least = max(stated, 4 * whole / (1 + (count / 4) ** 2))
        scales = np.maximum(np.sqrt(power.mean(others)), least or 1.0)
        errors = np.sqrt(squares.mean(others)) / scales
        index = int(errors.argmax())
        slices.append(WorstSlice(axis, index, float(errors[index])))
    return max(slices, key=lambda part: part.relative_rms_error)
