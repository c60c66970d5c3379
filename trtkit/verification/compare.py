"""Compare results with a reference: as a whole, and by the worst slice of an output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.verification.report import Comparison, ComparisonLimits, WorstSlice

if TYPE_CHECKING:
    from trtkit.arrays import Array


def floor_of(tolerance: float) -> float:
    """Return the least scale of a slice, of an output whose RMS is 1: the square of the tolerance, 1e-4 to 0.03."""
    return min(max(tolerance**2, _LEAST_FLOOR), _MOST_FLOOR)


_LEAST_FLOOR, _MOST_FLOOR = 1e-4, 0.03


def compare(result: Array, reference: Array, floor: float = floor_of(0.0)) -> Comparison:
    """Compare two arrays of one shape, in fp64. Infinities and NaNs are equal at the same places only.

    floor: the least scale of a slice; see `worst_slice`.
    """
    if result.shape != reference.shape:
        return _hopeless(f"shape {list(result.shape)} is not the reference's {list(reference.shape)}")
    a, b = result.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        count = int((~np.isfinite(a)).sum())
        return _hopeless(f"{count} of {a.size} values are not finite; the reference has {int((~finite).sum())}")
    nans = int(np.isnan(b).sum())
    if not finite.any():
        return Comparison(0.0, 0.0, 0.0, 1.0, equal_nans=nans, values=b.size)
    a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    error, norm, own_norm = np.abs(a - b), float(np.linalg.norm(b)), float(np.linalg.norm(a))
    rms = float(np.linalg.norm(error))
    nonzero = b != 0
    return Comparison(
        rms / norm if norm else rms / math.sqrt(int(finite.sum())),
        float(error.max()),
        float((error[nonzero] / np.abs(b[nonzero])).max()) if nonzero.any() else 0.0,
        float(a.ravel() @ b.ravel() / (norm * own_norm)) if norm and own_norm else float(norm == own_norm),
        worst_slice=worst_slice(error, b, floor),
        equal_nans=nans,
        values=b.size,
    )


def worst(comparisons: list[Comparison]) -> Comparison:
    """Return the worst of each measure over several comparisons.

    One error over a whole output hides those of small numbers among large ones, as a detector's scores among its
    boxes.
    """
    problems = [comparison.problem for comparison in comparisons if comparison.problem]
    slices = [comparison.worst_slice for comparison in comparisons if comparison.worst_slice is not None]
    return Comparison(
        max(comparison.relative_rms_error for comparison in comparisons),
        max(comparison.max_abs_error for comparison in comparisons),
        max(comparison.max_rel_error for comparison in comparisons),
        min(comparison.cosine for comparison in comparisons),
        problems[0] if problems else "",
        max(slices, key=lambda part: part.relative_rms_error, default=None),
        sum(comparison.equal_nans for comparison in comparisons),
        sum(comparison.values for comparison in comparisons),
    )


def _hopeless(problem: str) -> Comparison:
    return Comparison(math.inf, math.inf, math.inf, 0.0, problem)


# Slices may be this much farther off than the whole output, within these bounds: one whose answers are gone is off by
# its own size or more.
_TIMES, _LEAST, _MOST = 10.0, 0.05, 0.9

# Rows and columns of maps [B, C, H, W] hold the same unit: those with little next to the rest are background.
_MAP_FLOOR = 0.1


def limits_of(tolerance: float, slices: float | None = None) -> ComparisonLimits:
    """Return the limits that go with an output's tolerance. slices: the config's own, if it has one."""
    usual = min(max(_TIMES * tolerance, _LEAST), _MOST)
    return ComparisonLimits(tolerance, usual if slices is None else slices, floor_of(tolerance))


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
