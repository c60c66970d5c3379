"""ONNX Runtime's GroupQueryAttention in primitives: rotary embedding, cache, causal mask, window.

The cache is one of two kinds. Grown: `present` is `past` and the new keys after it, as long as total_sequence_length
says where all rows are equally long. Shared: `present` has `past`'s own shape, and the new keys go after the keys that
are there. Both follow from the shapes that the model declares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, INT32
from trtkit.network.foreign import NotYetKnownError, Refusal
from trtkit.network.onnx.rewrites.rule import MICROSOFT, Node, Rule, Written

if TYPE_CHECKING:
    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.writer import Writer

_LOWEST = -3.4e38


@dataclass(frozen=True)
class _Heads:
    """Numbers of query and key/value heads, elements of each, and new tokens."""

    queries: int
    keys: int
    size: int
    tokens: int | OnnxValue


@dataclass(frozen=True)
class _Scoring:
    """How scores become weights. softcap: 0 for none. hidden: tokens not seen [B, S, T]. bias: is added."""

    scale: float
    softcap: float
    hidden: OnnxValue
    bias: OnnxValue | None


def group_query_attention(o: Writer, node: Node) -> Written:
    """Write query, key, value, past key, past value, seqlens_k [B] (cached tokens - 1), total length, cos, sin."""
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
    """Return query [B, N, S, H], key and value [B, K, S, H]; they may come packed as one."""
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
    """Turn the first 2 * R / 2 elements of each head [B, N, S, H]; the rest stays."""
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
    """Return keys or values of all tokens [B, K, T, H]. x: of the new tokens. before: lengths before them [B, 1]."""
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
    """Return softmax(q k^T scale + mask) v as [B, S, N * H]; the queries of one key head are multiplied at once."""
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


RULES = (Rule(MICROSOFT, "GroupQueryAttention", group_query_attention),)
