"""Compare a result with a reference."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Comparison:
    """How far a result is from its reference.

    relative_rms_error: `||a-b|| / ||b||`, where b is all zeros the RMS of a; infinite where one is finite and the
        other is not, or shapes differ.
    max_rel_error: largest `|a-b| / |b|` where b is not 0. cosine: cosine similarity.
    """

    relative_rms_error: float
    max_abs_error: float
    max_rel_error: float
    cosine: float
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON data; infinities, which JSON lacks, as null."""
        return {key: _finite(value) for key, value in asdict(self).items()}


def compare(result: Array, reference: Array) -> Comparison:
    """Compare two arrays of one shape, in fp64. NaN never passes; equal infinities are equal."""
    if result.shape != reference.shape:
        return _hopeless(f"shape {list(result.shape)} is not the reference's {list(reference.shape)}")
    a, b = result.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite]) or not np.isfinite(a[finite]).all():
        count = int((~np.isfinite(a)).sum())
        return _hopeless(f"{count} of {a.size} values are not finite; the reference has {int((~finite).sum())}")
    a, b = a[finite], b[finite]
    if a.size == 0:
        return Comparison(0.0, 0.0, 0.0, 1.0)
    error, norm, own_norm = np.abs(a - b), float(np.linalg.norm(b)), float(np.linalg.norm(a))
    rms = float(np.linalg.norm(error))
    nonzero = b != 0
    return Comparison(
        rms / norm if norm else rms / math.sqrt(b.size),
        float(error.max()),
        float((error[nonzero] / np.abs(b[nonzero])).max()) if nonzero.any() else 0.0,
        float(a @ b / (norm * own_norm)) if norm and own_norm else float(norm == own_norm),
    )


def worst(comparisons: list[Comparison]) -> Comparison:
    """Return the worst of each measure over several comparisons."""
    problems = [comparison.problem for comparison in comparisons if comparison.problem]
    return Comparison(
        max(comparison.relative_rms_error for comparison in comparisons),
        max(comparison.max_abs_error for comparison in comparisons),
        max(comparison.max_rel_error for comparison in comparisons),
        min(comparison.cosine for comparison in comparisons),
        problems[0] if problems else "",
    )


def _hopeless(problem: str) -> Comparison:
    return Comparison(math.inf, math.inf, math.inf, 0.0, problem)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
