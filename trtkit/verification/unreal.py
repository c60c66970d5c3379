"""Whether random inputs are to blame: no model was made for them, and some outputs have no signal on them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.verification.report import LayerError, Report

# A layer that multiplies the error of what it reads this much is near a division by zero or a difference of equals.
_AMPLIFIED = 30.0
# An output whose largest value is below this is what a sigmoid or a softmax makes of inputs that it has never seen.
_NO_SIGNAL = 1e-5
_FIX = "real inputs decide: `--inputs FILE` (images with `preprocess`, .npz), or `verify.ranges` for random ones"


def unreal_reason(report: Report) -> str:
    """Return why a failure on random inputs may be the inputs' fault; empty if nothing shows it."""
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
    """Yield how much each layer multiplies error, where that is much, with its index."""
    errors = {layer.tensor: layer.relative_rms_error for layer in layers}
    for index, layer in enumerate(layers):
        known = (errors.get(tensor, 0.0) for tensor in layer.reads)
        before = max((error for error in known if error < math.inf), default=0.0)
        if before > 0 and _AMPLIFIED * before < layer.relative_rms_error < math.inf:
            yield layer.relative_rms_error / before, index
