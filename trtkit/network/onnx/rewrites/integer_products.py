"""ConvInteger and MatMulInteger as fp32 products of integers.

Exact while sums stay below 2^24: 2^24 / (255 * 127) = 518 terms of the largest values, and in practice far more. Beyond
that, a sum is accurate to 24 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import INT32, UINT8
from trtkit.network.onnx.rewrites.rule import MICROSOFT, Node, Rule, Written

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.rule import Writer

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def shifted(o: Writer, node: Node, index: int, zero_place: int, axis: int) -> OnnxValue:
    """Return an input minus its zero point in fp32; a vector of zero points is along `axis`."""
    value = node.constants[index]
    zero_point = node.constants[zero_place] if node.input(zero_place) else np.zeros((), np.int8)
    if value is not None and zero_point is not None:
        return _weights(o, value.astype(np.int32) - _along(zero_point, axis, value.ndim).astype(np.int32))
    whole = node.whole(o, index)
    if not node.input(zero_place):
        return whole
    return whole - o.along(node.whole(o, zero_place), axis, len(whole.shape))


def _weights(o: Writer, values: Array) -> OnnxValue:
    """Return constant integers: as int8 times one if they fit, else in fp32."""
    if values.size and (values.min() < -128 or values.max() > 127):
        return o.constant(values.astype(np.float32))
    one, zero = o.number(1.0), o.constant(np.zeros((), np.int8))
    return o.call("DequantizeLinear", [o.constant(values.astype(np.int8)), one, zero])


def _along(value: Array, axis: int, rank: int) -> Array:
    if value.size == 1:
        return value.reshape(())
    return value.reshape([-1 if index == axis % rank else 1 for index in range(rank)])


def conv_integer(o: Writer, node: Node) -> Written:
    """Write a convolution of integers."""
    x = shifted(o, node, 0, 2, 1)
    weight = shifted(o, node, 1, 3, 0)
    product = o.call("Conv", [x, weight], **conv_attributes(node))
    return [o.cast(o.unary("round", product), INT32)]


def conv_attributes(node: Node) -> dict[str, object]:
    """Return the attributes that a convolution shares with ONNX's Conv. Raises Refusal for others."""
    node.ignore(*_CONV)
    node.check_all_read()
    return dict(node.attributes)


def matmul_integer(o: Writer, node: Node) -> Written:
    """Write a product of integer matrices."""
    node.check_all_read()
    return [o.cast(o.unary("round", integer_matmul(o, node, a_zero=2, b_zero=3)), INT32)]


def integer_matmul(o: Writer, node: Node, a_zero: int, b_zero: int) -> OnnxValue:
    """Return the product of A and B in fp32.

    a_zero, b_zero: the indices of their zero points, which are along A's rows and B's columns.
    """
    left = shifted(o, node, 0, a_zero, -2)
    return o.matmul(left, shifted(o, node, 1, b_zero, -1))


def matmul_integer_to_float(o: Writer, node: Node) -> Written:
    """Write ONNX Runtime's product with scales: A, B, A scale, B scale, A zero point, B zero point, bias."""
    node.check_all_read()
    product = integer_matmul(o, node, a_zero=4, b_zero=5)
    product = product * o.along(node.x(2), -2, len(product.shape)) * o.along(node.x(3), -1, len(product.shape))
    bias = node.optional(6)
    return [product if bias is None else product + bias]


def dynamic_quantize_matmul(o: Writer, node: Node) -> Written:
    """Write ONNX Runtime's product of a dynamically quantized tensor: A, B, B scale, B zero point, bias."""
    node.check_all_read()
    whole, scale, zero_point = quantized_on_the_way(o, node.x(0))
    product = o.matmul(whole - zero_point, shifted(o, node, 1, 3, -1))
    product = product * (o.along(node.x(2), -1, len(product.shape)) * scale)
    bias = node.optional(4)
    return [product if bias is None else product + bias]


def quantized_on_the_way(o: Writer, x: OnnxValue) -> tuple[OnnxValue, OnnxValue, OnnxValue]:
    """Return x as integers from 0 to 255, scale and zero point, in fp32, as DynamicQuantizeLinear defines them."""
    axes = range(len(x.shape))
    low = o.binary("min", o.reduce("min", x, axes), 0.0)
    high = o.binary("max", o.reduce("max", x, axes), 0.0)
    scale = (high - low) / 255.0
    zero_point = o.unary("round", o.clip((0.0 - low) / scale, 0.0, 255.0))
    whole = o.clip(o.unary("round", x / scale) + zero_point, 0.0, 255.0)
    return whole, scale, zero_point


def dynamic_quantize(o: Writer, node: Node) -> Written:
    """Write a tensor as uint8, with scale and zero point; inside a model, the integers stay int32."""
    node.check_all_read()
    whole, scale, zero_point = quantized_on_the_way(o, node.x(0))
    return [o.cast(whole, UINT8), scale, o.cast(zero_point, UINT8)]


RULES = (
    Rule("", "DynamicQuantizeLinear", dynamic_quantize, is_fp32=True),
    Rule("", "ConvInteger", conv_integer, is_fp32=True),
    Rule("", "MatMulInteger", matmul_integer, is_fp32=True),
    Rule(MICROSOFT, "MatMulIntegerToFloat", matmul_integer_to_float, is_fp32=True),
    Rule(MICROSOFT, "DynamicQuantizeMatMul", dynamic_quantize_matmul, is_fp32=True),
)
