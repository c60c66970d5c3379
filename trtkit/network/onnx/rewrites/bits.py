"""Bitwise operators by arithmetic: int8, int32 and int64 in two's complement, uint8.

BitShift of int64 takes up to 62 steps; int32 and narrower types any number, computed in int64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32, INT8, INT32, INT64, UINT8, DType
from trtkit.network.foreign import Refusal
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.rule import Writer

_BITS = {INT8: 31, INT32: 31, INT64: 63, UINT8: 8}
"""Bits without the sign of the type that a type is computed in: 8-bit types in int32."""


def bitwise(name: str) -> Callable[[Writer, Node], Written]:
    """Return the rule for `and`, `or` or `xor` of two tensors."""

    def write(o: Writer, node: Node) -> Written:
        node.check_all_read()
        mask = _low_mask(node) if name == "and" else None
        if mask is not None:
            x = _wide(o, node.x(mask[0]))
            return [o.cast(o.call("Mod", [x, o.number(mask[1], x.dtype)]), node.x(0).dtype)]
        a, b = (_wide(o, node.x(index)) for index in (0, 1))
        return [o.cast(_combined(o, name, a, b), node.x(0).dtype)]

    return write


def bitwise_not(o: Writer, node: Node) -> Written:
    """Write -1 - x, or 255 - x of uint8."""
    node.check_all_read()
    x = _wide(o, node.x(0))
    return [o.cast((255 if node.x(0).dtype == UINT8 else -1) - x, node.x(0).dtype)]


def bit_shift(o: Writer, node: Node) -> Written:
    """Write a product with, or quotient by, a power of two. Bits shifted out are lost; the sign is shifted in.

    Negative shifts count as larger than the number of bits, as in ONNX's tests.
    """
    direction = node.only("direction", ("LEFT", "RIGHT"), None)
    node.check_all_read()
    x, width = node.x(0), node.x(0).dtype.bits
    wide, steps = o.cast(_wide(o, x), INT64), o.cast(node.x(1), INT64)
    within = o.binary("min", o.select(steps < 0, o.number(width, INT64), steps), min(width, 62))
    power = o.cast(o.binary("pow", 2.0, o.cast(within, FP32)), INT64)  # exact: a power of two
    if direction == "LEFT":
        return [_wrapped(o, wide * power, x.dtype)] if width < 64 else [wide * power]
    floor = o.binary("div", wide - o.call("Mod", [wide, power]), power)
    return [o.cast(floor, x.dtype)]


def _wrapped(o: Writer, x: OnnxValue, dtype: DType) -> OnnxValue:
    """Return the low bits of int64 in a narrower type."""
    low = o.call("Mod", [x, o.number(2**dtype.bits, INT64)])
    if dtype != UINT8:
        low = o.select(low > 2 ** (dtype.bits - 1) - 1, low - 2**dtype.bits, low)
    return o.cast(o.cast(low, INT32), dtype)


def _wide(o: Writer, x: OnnxValue) -> OnnxValue:
    """Return x in a type that TensorRT computes in."""
    if x.dtype not in _BITS:
        raise Refusal(f"type {x.dtype}, allowed: {', '.join(str(dtype) for dtype in _BITS)}")
    return x if x.dtype in {INT32, INT64} else o.cast(x, INT32)


def _low_mask(node: Node) -> tuple[int, int] | None:
    """Return the other input's index and 2^k if one input is the constant 2^k - 1: the remainder of a division."""
    for index in (0, 1):
        value = node.constants[index]
        if value is not None and value.size == 1 and value.ndim <= len(node.x(1 - index).shape):
            above = int(value.reshape(())) + 1
            if 1 < above <= 2**30 and above & (above - 1) == 0:
                return 1 - index, above
    return None


def _combined(o: Writer, name: str, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Return the sum of the combined bits; the sign is one more bit, with the lowest value."""
    bits = 63 if a.dtype == INT64 else 31
    a_bits, a_sign = _bits(o, a, bits)
    b_bits, b_sign = _bits(o, b, bits)
    weights = o.constant(np.array([2**bit for bit in range(bits)], np.int64), a.dtype)
    low = o.reduce("sum", _joined(o, name, a_bits, b_bits) * weights, [-1])
    return low + _joined(o, name, a_sign, b_sign) * _lowest(o, a.dtype)


def _bits(o: Writer, x: OnnxValue, bits: int) -> tuple[OnnxValue, OnnxValue]:
    """Return the bits without the sign along a new last axis, and the sign bit, all 0 or 1."""
    sign = o.cast(x < 0, x.dtype)
    low = o.unsqueeze(x - sign * _lowest(o, x.dtype), len(x.shape))
    weights = o.constant(np.array([2**bit for bit in range(bits)], np.int64), x.dtype)
    return o.call("Mod", [o.binary("div", low, weights), o.number(2, x.dtype)]), sign


def _lowest(o: Writer, dtype: DType) -> OnnxValue:
    return o.constant(np.array(-(2 ** (dtype.bits - 1)), dtype.numpy))


def _joined(o: Writer, name: str, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Combine bits that are 0 or 1."""
    if name == "and":
        return a * b
    return o.binary("max", a, b) if name == "or" else o.unary("abs", a - b)


RULES = (
    Rule("", "BitwiseAnd", bitwise("and"), is_fp32=True),
    Rule("", "BitwiseOr", bitwise("or"), is_fp32=True),
    Rule("", "BitwiseXor", bitwise("xor"), is_fp32=True),
    Rule("", "BitwiseNot", bitwise_not, is_fp32=True),
    Rule("", "BitShift", bit_shift, is_fp32=True),
)
