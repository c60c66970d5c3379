"""QuantizeLinear and DequantizeLinear with a zero point, which TensorRT's lack.

A constant zero point z and scale s go over to numbers: Q(x) = round(x / s + z) = Q0(x + z s), DQ(q) = DQ0(q) - z s, so
that TensorRT's own layers stay. Ties may round to the other side: results are within one quantization step.
Those that are computed are written as arithmetic, exactly as ONNX defines them. So is DequantizeLinear of int32, which
TensorRT refuses: of a constant, the bias of a quantized layer, its values take its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32, INT8, INT32, UINT8
from trtkit.network.foreign import NotYetKnownError
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.writer import Writer

_RANGES = {INT8: (-128.0, 127.0), UINT8: (0.0, 255.0)}


def quantize(o: Writer, node: Node) -> Written:
    """Write QuantizeLinear without a zero point."""
    if not _is_ours(node, 2):
        return None
    x, scale, zero_point = node.x(0), node.x(1), node.x(2)
    if zero_point.dtype == UINT8 and node.known(1) and node.known(2):
        return None  # becomes int8 first
    along = _Along(o, x, node.number("axis", 1), node.number("block_size", 0))
    if not (node.known(1) and node.known(2)):
        return [_quantized(along, scale, node)]
    shift = along.spread(_product(o, node))
    zeros = o.constant(np.zeros(zero_point.shape, np.int8))
    return [o.call("QuantizeLinear", [x + o.cast(shift, x.dtype), scale, zeros], **along.attributes)]


def dequantize(o: Writer, node: Node) -> Written:
    """Write DequantizeLinear without a zero point."""
    if node.fact(0) is not None and node.x(0).dtype == INT32:
        return [_dequantized_int32(o, node)]
    if not _is_ours(node, 2):
        return None
    x, scale, zero_point = node.x(0), node.x(1), node.x(2)
    if zero_point.dtype == UINT8 and node.known(1) and node.known(2):
        return None
    along = _Along(o, x, node.number("axis", 1), node.number("block_size", 0))
    whole = _whole_weights(o, node, along)
    zeros = o.constant(np.zeros(zero_point.shape, np.int8))
    if whole is not None:
        return [o.call("DequantizeLinear", [whole, scale, zeros], **along.attributes)]
    if not (node.known(1) and node.known(2)):
        shifted = node.whole(o, 0) - along.spread(node.whole(o, 2))
        return [o.cast(shifted * along.spread(o.cast(scale, FP32)), scale.dtype)]
    shift = along.spread(_product(o, node))
    return [o.call("DequantizeLinear", [x, scale, zeros], **along.attributes) - o.cast(shift, scale.dtype)]


def _dequantized_int32(o: Writer, node: Node) -> OnnxValue:
    """Return int32 times scale, in fp32 as ONNX Runtime has it. Its zero point is 0, ONNX allows no other."""
    values, scale, axis = node.constants[0], node.constants[1], node.number("axis", 1)
    if values is None or scale is None:
        return o.cast(o.cast(node.x(0), FP32) * o.along(node.x(1), axis, len(node.x(0).shape)), node.x(1).dtype)
    sizes = [1] * values.ndim
    if scale.size > 1:
        sizes[axis] = -1
    product = values.astype(np.float32) * scale.astype(np.float32).reshape(sizes)
    return o.cast(o.constant(product), node.x(1).dtype)


def _is_ours(node: Node, index: int) -> bool:
    """Whether there is a zero point of int8 or uint8 that is not known to be zero, or a computed scale of one."""
    zero_point = node.values[index] if index < len(node.inputs) else None
    if zero_point is None or zero_point.dtype not in _RANGES or node.values[0] is None:
        return False
    value = node.constants[index]
    if value is None or zero_point.dtype == UINT8:
        return True
    return bool(np.any(value)) or not node.known(1)


@dataclass(frozen=True)
class _Along:
    """Where scales and zero points of x lie: one, one for each place of an axis, or one for each block of places."""

    o: Writer
    x: OnnxValue
    axis: int
    block: int

    @property
    def attributes(self) -> dict[str, int]:
        """Those of ONNX's nodes."""
        return {"axis": self.axis} | ({"block_size": self.block} if self.block else {})

    def spread(self, value: OnnxValue) -> OnnxValue:
        """Return scales or zero points in a shape that broadcasts over x."""
        if not self.block:
            return self.o.along(value, self.axis, len(self.x.shape))
        axis, size = self.axis % len(value.shape), self.x.shape[self.axis]
        if -1 in value.shape or size < 0:
            raise NotYetKnownError("the shape must be known if each block has its own zero point")
        dims = [*value.shape[: axis + 1], self.block, *value.shape[axis + 1 :]]
        repeated = self.o.expand(self.o.unsqueeze(value, axis + 1), dims)
        merged = [*value.shape[:axis], value.shape[axis] * self.block, *value.shape[axis + 1 :]]
        return self.o.take(self.o.reshape(repeated, merged), axis, 0, size)


def _product(o: Writer, node: Node) -> OnnxValue:
    """Return zero point times scale, computed in fp64."""
    scale, zero_point = node.constants[1], node.constants[2]
    assert scale is not None
    assert zero_point is not None
    return o.constant((scale.astype(np.float64) * zero_point).astype(np.float32))


def _whole_weights(o: Writer, node: Node, along: _Along) -> OnnxValue | None:
    """Return constant weights minus their zero points where that fits int8."""
    weights, zero_point = node.constants[0], node.constants[2]
    if weights is None or zero_point is None or along.block:
        return None
    if zero_point.ndim:
        sizes = [1] * weights.ndim
        sizes[along.axis] = -1
        zero_point = zero_point.reshape(sizes if zero_point.size > 1 else ())
    shifted = weights.astype(np.int32) - zero_point.astype(np.int32)
    fits = shifted.size == 0 or (shifted.min() >= -128 and shifted.max() <= 127)
    return o.constant(shifted.astype(np.int8)) if fits else None


def _quantized(along: _Along, scale: OnnxValue, node: Node) -> OnnxValue:
    """Return QuantizeLinear as arithmetic."""
    o, zero_point = along.o, node.x(2)
    steps = o.unary("round", o.cast(along.x, FP32) / along.spread(o.cast(scale, FP32)))
    shifted = steps + along.spread(node.whole(o, 2))
    return o.cast(o.clip(shifted, *_RANGES[zero_point.dtype]), zero_point.dtype)


RULES = (Rule("", "QuantizeLinear", quantize), Rule("", "DequantizeLinear", dequantize))
