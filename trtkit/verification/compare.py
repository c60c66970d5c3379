"""Compare a result with a reference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.verification.report import Comparison
from trtkit.verification.slices import floor_of, worst_slice

if TYPE_CHECKING:
    from trtkit.arrays import Array


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
    """Return the worst of each measure over several comparisons."""
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
