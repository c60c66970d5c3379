"""Whether a pass means anything: how far outputs move with inputs, compared with the error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.verification.report import ComparisonLimits, Output


# An error of this share of the movement is not plainly below it.
_SHARE = 0.1


def spread(answers: Sequence[Array]) -> float | None:
    """Return how far a model's answers to different inputs are from their mean: relative RMS, the largest over inputs.

    None if there are fewer than two of one shape.
    """
    first = answers[0].shape if answers else ()
    alike = [answer.astype(np.float64) for answer in answers if answer.shape == first and np.isfinite(answer).all()]
    if len(alike) < 2 or not alike[0].size:
        return None
    mean = sum(alike[1:], start=alike[0]) / len(alike)
    norm = max(float(np.linalg.norm(answer)) for answer in alike)
    return max(float(np.linalg.norm(answer - mean)) for answer in alike) / (norm or 1.0)


def hollow_outputs(outputs: Mapping[str, Output], limits: ComparisonLimits) -> tuple[str, ...]:
    """Return outputs whose pass is inconclusive: one that never moved would pass too, and the error is not smaller.

    An output of nothing but NaN is one too.
    """
    return tuple(name for name, output in outputs.items() if _is_hollow(output, limits.tolerance))


def _is_hollow(output: Output, tolerance: float) -> bool:
    if output.values and output.equal_nans == output.values:
        return True
    error = output.relative_rms_error
    return output.spread is not None and output.spread <= tolerance and _SHARE * output.spread <= error < math.inf
