"""Whether random inputs are to blame: no model was made for them, and some outputs have no signal on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]

# A layer that multiplies the error of what it reads this much is near a division by zero or a difference of equals.
_AMPLIFIED = 30.0
# An output whose largest value is below this is what a sigmoid or a softmax makes of inputs that it has never seen.
_NO_SIGNAL = 1e-5
_FIX = "real inputs decide: `--inputs FILE` (images with `preprocess`, .npz), or `verify.ranges` for random ones"


def unreal_reason(report: Json) -> str:
    """Return why a failure on random inputs may be the inputs' fault; empty if nothing shows it."""
    last = [layer for layer in report["layers"] if layer["tensor"] in report["outputs"]]
    weak = next((layer for layer in last if layer["largest"] < _NO_SIGNAL), None)
    if weak is not None:
        what = f"output `{weak['tensor']}` has no signal, its largest value is {weak['largest']:.1e}"
        return f"random inputs: {what}; {_FIX}"
    worst = max(_amplified(report["layers"]), default=None)
    if worst is None:
        return ""
    factor, index = worst
    layer = report["layers"][index]
    what = f"`{layer['layer']}` ({layer['kind']}) multiplies the error of its inputs by {factor:.0f}"
    return f"random inputs: {what}, as near a division by zero; {_FIX}"


def _amplified(layers: Sequence[Json]) -> list[tuple[float, int]]:
    """Return how much each layer multiplies error, where that is much, with its index."""
    errors = {layer["tensor"]: layer["relative_rms_error"] for layer in layers}
    found = []
    for index, layer in enumerate(layers):
        before = max((errors.get(tensor) or 0.0 for tensor in layer.get("reads", ())), default=0.0)
        after = layer["relative_rms_error"]
        if before > 0 and after is not None and after > _AMPLIFIED * before:
            found.append((after / before, index))
    return found
