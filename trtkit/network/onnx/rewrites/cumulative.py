"""CumProd of an axis of known size, in log2(size) products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.foreign import NotYetKnownError
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.writer import Writer


def cumprod(o: Writer, node: Node) -> Written:
    """Multiply each element by the one 1, 2, 4, ... places before (after, in reverse)."""
    is_exclusive, is_reverse = node.number("exclusive", 0), node.number("reverse", 0)
    node.check_all_read()
    x, axis = node.x(0), int(node.constant(1, "axis").reshape(())) % len(node.x(0).shape)
    size = x.shape[axis]
    if size < 0:
        raise NotYetKnownError(f"size of axis {axis} of input 0 (`{node.input(0)}`) must be known")
    y = _moved(o, x, axis, 1, is_reverse=is_reverse) if is_exclusive else x
    step = 1
    while step < size:
        y = y * _moved(o, y, axis, step, is_reverse=is_reverse)
        step *= 2
    return [y]


def _moved(o: Writer, x: OnnxValue, axis: int, step: int, *, is_reverse: bool) -> OnnxValue:
    """Return x moved along an axis by `step` places, ones where nothing came from."""
    kept = max(x.shape[axis] - step, 0)
    part = o.take(x, axis, step if is_reverse else 0, kept)
    return o.pad(part, axis, 0 if is_reverse else step, step if is_reverse else 0, 1.0)


RULES = (Rule("", "CumProd", cumprod),)
