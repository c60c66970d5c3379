"""Comparison of results with a reference: over a whole output, and over its worst slice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.verification.report import Comparison, ComparisonLimits, WorstSlice

if TYPE_CHECKING:
    from trtkit.arrays import Array


def floor_of(tolerance: float) -> float:
    """Return the smallest scale of a slice, for an output with an RMS of 1.

    The square of the tolerance, 1e-4 to 0.03.
    """
    return min(max(tolerance**2, _LEAST_FLOOR), _MOST_FLOOR)


_LEAST_FLOOR, _MOST_FLOOR = 1e-4, 0.03


def compare(result: Array, reference: Array, floor: float = floor_of(0.0)) -> Comparison:
    """Compare two arrays of the same shape in fp64. Infinities and NaNs are equal only at the same positions.

    floor: the smallest scale of a slice; see `worst_slice`.
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
    """Return the worst value of each measure over several comparisons.

    A single error over a whole output would hide errors of small numbers among large ones, such as a detector's scores
    among its boxes.
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


# A slice's error may exceed the whole output's by this factor, within these bounds: a slice whose answers are gone has
# an error as large as its own values or larger.
_TIMES, _LEAST, _MOST = 10.0, 0.05, 0.9

# Rows and columns of maps [B, C, H, W] share a unit: those that are small compared with the rest are background.
_MAP_FLOOR = 0.1


def limits_of(tolerance: float, slices: float | None = None) -> ComparisonLimits:
    """Return the comparison limits for an output's tolerance. slices: the config's own slice tolerance, if set."""
    usual = min(max(_TIMES * tolerance, _LEAST), _MOST)
    return ComparisonLimits(tolerance, usual if slices is None else slices, floor_of(tolerance))


def worst_slice(error: Array, reference: Array, floor: float) -> WorstSlice | None:
    """Return the slice, along any axis but the batch axis 0, with the largest RMS error relative to its own scale.

    A slice's scale is the RMS of its reference, with a lower bound: `floor` times the output's RMS (times 1 if the RMS
    is larger, so that boxes in pixels do not hide scores). For slices of few elements, whose RMS is small and whose
    error is large by chance, the bound is a multiple of the output's RMS: 4 RMS / (1 + (n / 4)^2). For rows and columns
    of maps [B, C, H, W] it is at least a tenth of the output's RMS. Both arrays: finite, fp64. None for empty arrays
    and for one axis.
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
