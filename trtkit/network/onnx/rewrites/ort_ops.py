"""ONNX Runtime's own operators in primitives: attention, fused layers, quantized tensors and matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from trtkit.dtypes import FP32, INT4, INT8, INT32
from trtkit.network.foreign import NotYetKnownError, Refusal
from trtkit.network.onnx.rewrites.integer_products import conv_attributes
from trtkit.network.onnx.rewrites.rule import MICROSOFT, Node, Rule, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.arrays import Array
    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.rule import Writer

_LOWEST = -3.4e38


@dataclass(frozen=True)
class _Heads:
    """Numbers of query and key/value heads, head size, and new tokens."""

    queries: int
    keys: int
    size: int
    tokens: int | OnnxValue


@dataclass(frozen=True)
class _Scoring:
    """How scores become weights.

    softcap: 0 for none. hidden: mask of invisible tokens [B, S, T]. bias: added to scores.
    """

    scale: float
    softcap: float
    hidden: OnnxValue
    bias: OnnxValue | None


def group_query_attention(o: Writer, node: Node) -> Written:
    """Write query, key, value, past key, past value, seqlens_k [B] (cached tokens - 1), total length, cos, sin.

    The cache is one of two kinds. Grown: `present` is `past` followed by the new keys, of total_sequence_length if all
    rows are equally long. Shared: `present` has `past`'s own shape, and the new keys follow the valid ones. The
    declared shapes of the model tell which.
    """
    scale, softcap = node.number("scale", 0.0), node.number("softcap", 0.0)
    window, is_rotary = node.number("local_window_size", -1), node.number("do_rotary", 0)
    is_interleaved = bool(node.number("rotary_interleaved", 0))
    q, k, v, heads = _split_heads(o, node)
    node.only("smooth_softmax", (0, -1), 0)
    node.only("qk_output", (0,), 0)
    node.only("k_quant_type", ("NONE",), "NONE")
    node.only("v_quant_type", ("NONE",), "NONE")
    node.check_all_read()
    _refuse_inputs(node)
    total = o.cast(node.x(5, "seqlens_k"), INT32) + 1  # [B]
    total = o.reshape(total, [-1, 1])
    past = total - _number(o, heads.tokens)  # [B, 1]
    steps = o.unsqueeze(o.arange(heads.tokens, INT32), 0)
    positions = past + steps  # [B, S]
    if is_rotary:
        cos, sin = _angles(o, node, positions)
        q, k = (_rotated(o, x, cos, sin, is_interleaved=is_interleaved) for x in (q, k))
    present_k, present_v = (_cached(o, node, index, new, past) for index, new in ((3, k), (4, v)))
    length = o.size(present_k, 2)
    keys = o.reshape(o.arange(length, INT32), [1, 1, -1])
    at = o.unsqueeze(positions, 2)
    hidden = keys > at  # [B, S, T]
    if window > 0:
        hidden = o.binary("or", hidden, keys < at - (window - 1))
    scoring = _Scoring(scale or heads.size**-0.5, softcap, hidden, node.optional(10))
    out = _attended(o, q, present_k, present_v, heads, scoring)
    return [out, present_k, present_v][: len(node.outputs)]


def _refuse_inputs(node: Node) -> None:
    for index, name in ((11, "head_sink"), (12, "k_scale"), (13, "v_scale")):
        if node.input(index):
            raise Refusal(f"input {index} (`{name}`) is given, allowed: none", "export the model without it")


def _number(o: Writer, size: int | OnnxValue) -> OnnxValue | int:
    return size if isinstance(size, int) else o.cast(size, INT32)


def _split_heads(o: Writer, node: Node) -> tuple[OnnxValue, OnnxValue, OnnxValue, _Heads]:
    """Return query [B, N, S, H], key and value [B, K, S, H]; they may be packed in one tensor."""
    queries, keys = node.number("num_heads"), node.number("kv_num_heads")
    packed = node.x(0)
    width = packed.shape[2]
    if width < 0:
        raise NotYetKnownError(f"last axis of input 0 (`{node.input(0)}`) must be known")
    is_packed = not node.input(1)
    size = width // (queries + 2 * keys if is_packed else queries)
    parts = [node.x(0), node.x(0), node.x(0)] if is_packed else [node.x(0), node.x(1), node.x(2)]
    if is_packed:
        ends = (0, queries * size, (queries + keys) * size, (queries + 2 * keys) * size)
        parts = [o.take(packed, 2, ends[index], ends[index + 1] - ends[index]) for index in range(3)]
    tokens = o.size(packed, 1)
    split = [
        o.transpose(o.reshape(part, [0, 0, count, size]), (0, 2, 1, 3))
        for part, count in zip(parts, (queries, keys, keys), strict=True)
    ]
    return split[0], split[1], split[2], _Heads(queries, keys, size, tokens)


def _angles(o: Writer, node: Node, positions: OnnxValue) -> tuple[OnnxValue, OnnxValue]:
    """Return cosines and sines [B, 1, S, R / 2] of the positions."""
    position_ids = node.optional(9)
    at = positions if position_ids is None else o.cast(position_ids, INT32)
    at = o.binary("max", at, 0)
    cos, sin = (o.unsqueeze(o.gather(node.x(index), at, 0), 1) for index in (7, 8))
    return cos, sin


def _rotated(o: Writer, x: OnnxValue, cos: OnnxValue, sin: OnnxValue, *, is_interleaved: bool) -> OnnxValue:
    """Rotate the first 2 * R / 2 elements of each head [B, N, S, H]; the rest is unchanged."""
    half, size = cos.shape[-1], x.shape[-1]
    turned = o.take(x, 3, 0, 2 * half) if size != 2 * half else x
    if is_interleaved:
        a, b = o.split(o.reshape(turned, [0, 0, 0, half, 2]), 4)
    else:
        a, b = o.take(turned, 3, 0, half), o.take(turned, 3, half, half)
    left, right = a * cos - b * sin, b * cos + a * sin
    pairs = o.reshape(o.stack([left, right], -1), [0, 0, 0, 2 * half]) if is_interleaved else None
    rotated = o.concat([left, right], 3) if pairs is None else pairs
    return rotated if size == 2 * half else o.concat([rotated, o.take(x, 3, 2 * half, size - 2 * half)], 3)


def _cached(o: Writer, node: Node, index: int, x: OnnxValue, before: OnnxValue) -> OnnxValue:
    """Return keys or values of all tokens [B, K, T, H]. x: of the new tokens. before: earlier lengths [B, 1]."""
    past = node.optional(index)
    if past is None:
        return x
    present = node.declared.get(node.outputs[index - 2]) if node.is_used(index - 2) else None
    is_shared = present is not None and present == node.declared.get(node.input(index))
    old = o.size(past, 2)
    both = o.concat([past, x], 2)
    positions = o.unsqueeze(o.arange(o.size(past if is_shared else both, 2), INT32), 0)  # [1, T]
    first = _number(o, old)
    step = positions - before
    is_new = o.binary("and", step > -1, step < _number(o, o.size(x, 2)))
    last = first - 1
    at = o.select(is_new, step + first, o.binary("max", o.binary("min", positions, last), 0))
    moved = o.transpose(both, (0, 2, 1, 3))  # [B, P + S, K, H]
    return o.transpose(o.gather_nd(moved, o.unsqueeze(at, 2), batch_dims=1), (0, 2, 1, 3))


def _attended(o: Writer, q: OnnxValue, k: OnnxValue, v: OnnxValue, heads: _Heads, scoring: _Scoring) -> OnnxValue:
    """Return softmax(q k^T scale + mask) v as [B, S, N * H]; the queries of one key head are multiplied together."""
    group = heads.queries // heads.keys
    grouped = o.reshape(q, [0, heads.keys, -1, heads.size])  # [B, K, N / K * S, H]
    length = o.size(k, 2)
    scores = o.matmul(grouped * scoring.scale, o.transpose(k, (0, 1, 3, 2)))
    scores = o.cast(o.reshape(scores, [0, heads.keys, group, heads.tokens, length]), FP32)
    if scoring.softcap:
        scores = o.unary("tanh", scores / scoring.softcap) * scoring.softcap
    if scoring.bias is not None:
        scores = scores + o.cast(o.unsqueeze(scoring.bias, 1), FP32)
    lowest = o.number(_LOWEST, FP32)
    weights = o.softmax(o.select(o.unsqueeze(scoring.hidden, 1, 2), lowest, scores))
    mixed = o.matmul(o.reshape(o.cast(weights, v.dtype), [0, heads.keys, -1, length]), v)
    split = o.reshape(mixed, [0, heads.queries, heads.tokens, heads.size])
    return o.reshape(o.transpose(split, (0, 2, 1, 3)), [0, 0, heads.queries * heads.size])


_ATTENTION = (Rule(MICROSOFT, "GroupQueryAttention", group_query_attention),)


def bias_gelu(o: Writer, node: Node) -> Written:
    """Write Gelu(x + bias)."""
    node.check_all_read()
    return [_gelu(o, node.x(0) + node.x(1))]


def gelu(o: Writer, node: Node) -> Written:
    """Write x / 2 (1 + erf(x / sqrt 2))."""
    node.check_all_read()
    return [_gelu(o, node.x(0))]


def fast_gelu(o: Writer, node: Node) -> Written:
    """Write Gelu's tanh approximation of x, plus a bias if there is one."""
    node.check_all_read()
    bias = node.optional(1)
    x = node.x(0) if bias is None else node.x(0) + bias
    inner = (x + x * x * x * 0.044715) * 0.7978845608028654
    return [x * 0.5 * (o.unary("tanh", inner) + 1.0)]


def quick_gelu(o: Writer, node: Node) -> Written:
    """Write x sigmoid(alpha x)."""
    alpha = node.number("alpha", 1.702)
    node.check_all_read()
    return [node.x(0) * o.unary("sigmoid", node.x(0) * alpha)]


def _gelu(o: Writer, x: OnnxValue) -> OnnxValue:
    return x * 0.5 * (o.call("Erf", [x * 0.7071067811865476]) + 1.0)


def skip_layer_norm(o: Writer, node: Node) -> Written:
    """Write LayerNormalization of input + skip + bias; the sum is the fourth output."""
    epsilon = node.number("epsilon", 1e-12)
    node.check_all_read()
    if any(node.is_used(index) for index in (1, 2)):
        raise Refusal("outputs 1 and 2 (mean and deviation, for training) are used", "export the model for inference")
    total = node.x(0) + node.x(1)
    bias = node.optional(4)
    total = total if bias is None else total + bias
    beta = node.optional(3)
    inputs = [total, node.x(2)] + ([] if beta is None else [beta])
    normalized = o.call("LayerNormalization", inputs, epsilon=epsilon)
    return [normalized, None, None, total][: len(node.outputs)]


def fused_matmul(o: Writer, node: Node) -> Written:
    """Write alpha A B, either one transposed in its last two axes."""
    alpha, turns = node.number("alpha", 1.0), [node.number(name, 0) for name in ("transA", "transB")]
    for name in ("transBatchA", "transBatchB"):
        node.only(name, (0,), 0)
    node.check_all_read()
    a, b = (_turned(o, node.x(index)) if turn else node.x(index) for index, turn in enumerate(turns))
    product = o.matmul(a, b)
    return [product if alpha == 1.0 else product * alpha]


def _turned(o: Writer, x: OnnxValue) -> OnnxValue:
    order = list(range(len(x.shape)))
    return o.transpose(x, [*order[:-2], order[-1], order[-2]]) if len(order) > 1 else x


def fused_conv(o: Writer, node: Node) -> Written:
    """Write Conv, plus a tensor if there is one, then an activation."""
    activation = node.only("activation", ("", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid"), "")
    parameters = node.numbers("activation_params", ())
    inputs = [node.x(0), node.x(1)] + ([node.x(2)] if node.input(2) else [])
    kept = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    y = o.call("Conv", inputs, **kept)
    y = y + node.x(3) if node.input(3) else y
    if activation == "Clip":
        return [o.clip(y, *parameters)]
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(activation, ())
    attributes = dict(zip(names, parameters, strict=False))
    return [o.call(activation, [y], **attributes) if activation else y]


_FUSED = (
    Rule(MICROSOFT, "BiasGelu", bias_gelu),
    Rule(MICROSOFT, "Gelu", gelu),
    Rule(MICROSOFT, "FastGelu", fast_gelu),
    Rule(MICROSOFT, "QuickGelu", quick_gelu),
    Rule(MICROSOFT, "SkipLayerNormalization", skip_layer_norm),
    Rule(MICROSOFT, "FusedMatMul", fused_matmul),
    Rule(MICROSOFT, "FusedConv", fused_conv),
)


def dequantized(o: Writer, node: Node, index: int, axis: int = 1) -> OnnxValue:
    """Return the tensor at `index` dequantized; its scale and zero point are the next two inputs.

    axis: of scales and zero points that are vectors.
    """
    inputs = [node.x(index), node.x(index + 1), node.optional(index + 2)]
    return o.call("DequantizeLinear", [x for x in inputs if x is not None], axis=axis)


def quantized(o: Writer, node: Node, x: OnnxValue, index: int, axis: int = 1) -> OnnxValue:
    """Return x quantized with the scale at `index` and the zero point after it."""
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
    """Return the rule for an operator of two quantized tensors."""

    def write(o: Writer, node: Node) -> Written:
        node.check_all_read()
        return [quantized(o, node, o.binary(name, dequantized(o, node, 0), dequantized(o, node, 3)), 6)]

    return write


def _unary(op_type: str, *names: str, defaults: dict[str, Any] | None = None) -> Callable[[Writer, Node], Written]:
    """Return the rule for an operator of one quantized tensor. names: attributes that it shares with ONNX's."""

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

# Results equal the integer operators' within one quantization step: both sum products before rounding.
_QLINEAR = (
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


def matmul_nbits(o: Writer, node: Node) -> Written:
    """Write A [..., K], B [N, blocks, bytes], scales, zero points, group index, bias.

    W = (q - z) s = DQ(q - h) - (z - h) s, with h half the range: the second term is omitted if every z is h.
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
    """Return unpacked integers; 4-bit ones are two per byte, the low half first."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def _shift(node: Node, bits: int, columns: int, blocks: int, scales: Array) -> Array | None:
    """Return (zero point - half) * scale as [blocks, 1, columns]; None if it is zero."""
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


_NBITS = (Rule(MICROSOFT, "MatMulNBits", matmul_nbits),)


RULES = (*_ATTENTION, *_FUSED, *_QLINEAR, *_NBITS)
