"""Whether a pass is meaningful: how much outputs vary with inputs, and whether random inputs explain a failure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.verification.report import ComparisonLimits, LayerError, Output, Report

# An error of at least this share of the variation is not clearly smaller than it.
_SHARE = 0.1


def spread(answers: Sequence[Array]) -> float | None:
    """Return how far a model's answers to different inputs are from their mean: relative RMS, the largest over inputs.

    None if fewer than two have the same shape.
    """
    first = answers[0].shape if answers else ()
    alike = [answer.astype(np.float64) for answer in answers if answer.shape == first and np.isfinite(answer).all()]
    if len(alike) < 2 or not alike[0].size:
        return None
    mean = sum(alike[1:], start=alike[0]) / len(alike)
    norm = max(float(np.linalg.norm(answer)) for answer in alike)
    return max(float(np.linalg.norm(answer - mean)) for answer in alike) / (norm or 1.0)


def hollow_outputs(outputs: Mapping[str, Output], limits: ComparisonLimits) -> tuple[str, ...]:
    """Return outputs whose pass is inconclusive: a constant output would pass too.

    These vary less than the tolerance and have an error that is not clearly smaller, or contain only NaN.
    """
    return tuple(name for name, output in outputs.items() if _is_hollow(output, limits.tolerance))


def _is_hollow(output: Output, tolerance: float) -> bool:
    if output.values and output.equal_nans == output.values:
        return True
    error = output.relative_rms_error
    return output.spread is not None and output.spread <= tolerance and _SHARE * output.spread <= error < math.inf


# A layer that amplifies the error of its inputs this much is near a division by zero or a difference of equal values.
_AMPLIFIED = 30.0
# An output whose largest value is below this is typical of a sigmoid or softmax on inputs unlike its training data.
_NO_SIGNAL = 1e-5
_FIX = "real inputs decide: `--inputs FILE` (images with `preprocess`, .npz), or `verify.ranges` for random ones"


def unreal_reason(report: Report) -> str:
    """Return why a failure on random inputs may be the inputs' fault; empty if nothing suggests it."""
    last = [layer for layer in report.layers if layer.tensor in report.outputs]
    weak = next((layer for layer in last if layer.largest < _NO_SIGNAL), None)
    if weak is not None:
        what = f"output `{weak.tensor}` has no signal, its largest value is {weak.largest:.1e}"
        return f"random inputs: {what}; {_FIX}"
    factor, index = max(_amplified(report.layers), default=(0.0, 0))
    if not factor:
        return ""
    layer = report.layers[index]
    what = f"`{layer.layer}` ({layer.kind}) multiplies the error of its inputs by {factor:.0f}"
    return f"random inputs: {what}, as near a division by zero; {_FIX}"


def _amplified(layers: Sequence[LayerError]) -> Iterator[tuple[float, int]]:
    """Yield the error amplification of each layer that amplifies error strongly, with its index."""
    errors = {layer.tensor: layer.relative_rms_error for layer in layers}
    for index, layer in enumerate(layers):
        known = (errors.get(tensor, 0.0) for tensor in layer.reads)
        before = max((error for error in known if error < math.inf), default=0.0)
        if before > 0 and _AMPLIFIED * before < layer.relative_rms_error < math.inf:
            yield layer.relative_rms_error / before, index
