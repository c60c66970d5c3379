"""ONNX Runtime's operators on quantized tensors: dequantize, compute, quantize, as TensorRT needs to see it.

Results equal the integer operators' within one quantization step: products are summed before rounding in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import FP32, INT32
from trtkit.network.onnx.rewrites.integer_products import conv_attributes
from trtkit.network.onnx.rewrites.rule import MICROSOFT, Node, Rule, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.writer import Writer


def dequantized(o: Writer, node: Node, index: int, axis: int = 1) -> OnnxValue:
    """Return the tensor at `index` as numbers; its scale and zero point are the two inputs after it.

    axis: along which scales and zero points lie where they are vectors.
    """
    inputs = [node.x(index), node.x(index + 1), node.optional(index + 2)]
    return o.call("DequantizeLinear", [x for x in inputs if x is not None], axis=axis)


def quantized(o: Writer, node: Node, x: OnnxValue, index: int, axis: int = 1) -> OnnxValue:
    """Return x quantized by the scale and the zero point at `index`."""
    inputs = [x, node.x(index), node.optional(index + 1)]
    return o.call("QuantizeLinear", [x for x in inputs if x is not None], axis=axis)


def qlinear_conv(o: Writer, node: Node) -> Written:
    """Write x, x scale, x zero point, w, ..., y scale, y zero point, bias."""
    x, weight = dequantized(o, node, 0), dequantized(o, node, 3, axis=0)
    inputs = [x, weight]
    if node.input(8):
        inputs.append(_bias(o, node))
    return [quantized(o, node, o.call("Conv", inputs, **conv_attributes(node)), 6)]


def _bias(o: Writer, node: Node) -> OnnxValue:
    """Return the bias, whose scale is the product of the others."""
    scales = [node.constants[index] for index in (1, 4)]
    bias = node.constants[8]
    if bias is not None and scales[0] is not None and scales[1] is not None:
        return o.constant((bias * scales[0].astype(np.float64) * scales[1]).astype(np.float32))
    return o.cast(node.x(8), FP32) * (o.along(node.x(1), 0, 1) * o.along(node.x(4), 0, 1))


def qlinear_matmul(o: Writer, node: Node) -> Written:
    """Write a, a scale, a zero point, b, ..., y scale, y zero point."""
    node.check_all_read()
    ranks = [len(node.x(index).shape) for index in (0, 3)]
    product = o.matmul(dequantized(o, node, 0, axis=ranks[0] - 2), dequantized(o, node, 3, axis=ranks[1] - 1))
    return [quantized(o, node, product, 6)]


def qgemm(o: Writer, node: Node) -> Written:
    """Write a, a scale, a zero point, b, b scale, b zero point, c, y scale, y zero point."""
    alpha, turn_a, turn_b = node.number("alpha", 1.0), node.number("transA", 0), node.number("transB", 0)
    node.check_all_read()
    a, b = dequantized(o, node, 0), dequantized(o, node, 3, axis=0 if turn_b else 1)
    product = o.matmul(o.transpose(a, (1, 0)) if turn_a else a, o.transpose(b, (1, 0)) if turn_b else b) * alpha
    if node.input(6):
        product = product + o.cast(node.x(6), FP32) * (o.along(node.x(1), 0, 1) * o.along(node.x(4), 0, 1) * alpha)
    return [quantized(o, node, product, 7) if node.input(7) else product]


def _binary(name: str) -> Callable[[Writer, Node], Written]:
    """Return how an operator of two quantized tensors is written."""

    def write(o: Writer, node: Node) -> Written:
        node.check_all_read()
        return [quantized(o, node, o.binary(name, dequantized(o, node, 0), dequantized(o, node, 3)), 6)]

    return write


def _unary(op_type: str, *names: str, defaults: dict[str, Any] | None = None) -> Callable[[Writer, Node], Written]:
    """Return how an operator of one quantized tensor is written. names: attributes that it shares with ONNX's."""

    def write(o: Writer, node: Node) -> Written:
        node.only("channels_last", (0,), 0)
        node.ignore(*names, "opset")
        node.check_all_read()
        kept = (defaults or {}) | {name: value for name, value in node.attributes.items() if name in names}
        return [quantized(o, node, o.call(op_type, [dequantized(o, node, 0)], **kept), 3)]

    return write


def qlinear_concat(o: Writer, node: Node) -> Written:
    """Write y scale, y zero point, then each tensor with its scale and zero point."""
    axis = node.number("axis")
    node.check_all_read()
    parts = [dequantized(o, node, index) for index in range(2, len(node.inputs), 3)]
    return [quantized(o, node, o.concat(parts, axis), 0)]


def own_quantize(o: Writer, node: Node) -> Written:
    """Write ONNX Runtime's own QuantizeLinear as ONNX's."""
    axis = node.number("axis", 1)
    node.check_all_read()
    return [quantized(o, node, node.x(0), 1, axis)]


def own_dequantize(o: Writer, node: Node) -> Written:
    """Write ONNX Runtime's own DequantizeLinear as ONNX's."""
    axis = node.number("axis", 1)
    node.check_all_read()
    if node.x(0).dtype == INT32:
        return [o.cast(node.x(0), FP32) * o.along(node.x(1), axis, len(node.x(0).shape))]
    return [dequantized(o, node, 0, axis)]


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

RULES = (
    Rule("", "QLinearConv", qlinear_conv),
    Rule("", "QLinearMatMul", qlinear_matmul),
    Rule(MICROSOFT, "QLinearConv", qlinear_conv),
    Rule(MICROSOFT, "QGemm", qgemm),
    Rule(MICROSOFT, "QLinearAdd", _binary("add")),
    Rule(MICROSOFT, "QLinearMul", _binary("mul")),
    Rule(MICROSOFT, "QLinearSigmoid", _unary("Sigmoid")),
    Rule(MICROSOFT, "QLinearLeakyRelu", _unary("LeakyRelu", "alpha")),
    Rule(MICROSOFT, "QLinearSoftmax", _unary("Softmax", "axis")),
    Rule(MICROSOFT, "QLinearAveragePool", _unary("AveragePool", *_POOL)),
    Rule(MICROSOFT, "QLinearGlobalAveragePool", _unary("GlobalAveragePool")),
    Rule(MICROSOFT, "QLinearConcat", qlinear_concat),
    Rule(MICROSOFT, "QuantizeLinear", own_quantize),
    Rule(MICROSOFT, "DequantizeLinear", own_dequantize),
)
