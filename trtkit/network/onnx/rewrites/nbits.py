"""ONNX Runtime's MatMulNBits as a product with weights of int4 or int8, dequantized block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from trtkit.dtypes import INT4, INT8
from trtkit.network.foreign import Refusal
from trtkit.network.onnx.rewrites.rule import MICROSOFT, Node, Rule, Written

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.network.onnx.rewrites.writer import Writer


def matmul_nbits(o: Writer, node: Node) -> Written:
    """Write A [..., K], B [N, blocks, bytes], scales, zero points, group index, bias.

    W = (q - z) s = DQ(q - h) - (z - h) s, h half the range: the second part is there only where some z is not h.
    """
    bits, block = node.only("bits", (4, 8), 4), node.number("block_size")
    columns, rows = node.number("N"), node.number("K")
    node.ignore("accuracy_level", "weight_prepacked")
    node.check_all_read()
    if node.input(4):
        raise Refusal("input 4 (`g_idx`) is given, allowed: none", "export the model without reordered groups")
    x, half = node.x(0), 2 ** (bits - 1)
    blocks = -(-rows // block)
    whole = _unpacked(node.constant(1, "B").reshape(columns, blocks, -1), bits)[:, :, :block]
    weights = whole.reshape(columns, blocks * block).T.astype(np.int16) - half  # [K, N]
    scales = np.ascontiguousarray(node.constant(2, "scales").reshape(columns, blocks).T)
    kept = o.packed(weights, TensorProto.INT4 if bits == 4 else TensorProto.INT8, INT4 if bits == 4 else INT8)
    w = o.call("DequantizeLinear", [kept, o.constant(scales)], axis=0, block_size=block)
    shift = _shift(node, bits, columns, blocks, scales)
    if shift is not None:
        w = w - o.reshape(o.expand(o.constant(shift, w.dtype), [blocks, block, columns]), [blocks * block, columns])
    w = o.take(w, 0, 0, rows) if blocks * block != rows else w
    y = o.matmul(x, o.cast(w, x.dtype))
    bias = node.optional(5)
    return [y if bias is None else y + bias]


def _unpacked(packed: Array, bits: int) -> Array:
    """Return whole numbers; of 4 bits two are in a byte, the low half first."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def _shift(node: Node, bits: int, columns: int, blocks: int, scales: Array) -> Array | None:
    """Return (zero point - half) * scale as [blocks, 1, columns], None if it is zero."""
    if not node.input(3):
        return None
    stored = node.constant(3, "zero_points")
    if stored.dtype == np.uint8:
        stored = _unpacked(stored.reshape(columns, -1), bits)[:, :blocks]
    zero_points = stored.reshape(columns, blocks).T.astype(np.float32) - 2 ** (bits - 1)
    if not zero_points.any():
        return None
    shift: Array = (zero_points * scales.astype(np.float32)).reshape(blocks, 1, columns)
    return shift


RULES = (Rule(MICROSOFT, "MatMulNBits", matmul_nbits),)
