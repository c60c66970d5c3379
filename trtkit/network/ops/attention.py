"""Scaled dot-product attention, on the native layer or from primitives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtkit.dtypes import BOOL, FP32
from trtkit.errors import NetworkError
from trtkit.network.graph import Tensor
from trtkit.network.ops.activation import tanh
from trtkit.network.ops.arithmetic import cast, exponential, max_over, maximum, select, softmax, sum_over
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.mask import lowest
from trtkit.network.ops.shape import (
    concat,
    reshape,
    split,
    split_like,
    squeeze,
    take,
    take_as_many,
    transpose,
    unsqueeze,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

QKV = tuple[Tensor, Tensor, Tensor]


def scale_query(q: Tensor, scale: float, factors: Tensor | None = None) -> Tensor:
    """Multiply queries by the scale of scores; in fp32 unless it is a power of two, which is exact.

    factors: by token, [B, 1, S, 1] in fp32.
    """
    if factors is not None:
        return cast(cast(q, FP32) * factors * scale, q.dtype)
    if math.frexp(scale)[0] == 0.5:
        return q * scale if scale != 1 else q
    return cast(cast(q, FP32) * scale, q.dtype)


def attention(qkv: QKV, mask: Tensor | None = None, kv_lengths: Tensor | None = None) -> Tensor:
    """Compute softmax(q k^T + mask) v on TensorRT's attention layer: q [B, N, S, H], k and v [B, K, T, H].

    q is already scaled. fp32, unusual head sizes and one new token of few heads have no kernel and are decomposed.

    mask: [B, 1 or N, S, T], bool (true: may attend) or added in q's type; None if every token sees all.
    kv_lengths: [B] int32; keys beyond a sequence's length need not be read.
    Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/transformers-fused-attention.html
    """
    q, k, v = qkv
    graph, trt = q.graph, q.graph.backend.trt
    kinds = (trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.NONE)
    layer = graph.network.add_attention_v2(q.trt, k.trt, v.trt, *kinds)
    if layer is None:
        raise graph.error("TensorRT refused the attention")
    if mask is not None:
        layer.mask = mask.trt
        if layer.mask is None:
            raise NetworkError("TensorRT did not take the mask", graph.path())
    if kv_lengths is not None:
        layer.key_value_lengths = kv_lengths.trt
    layer.decomposable = q.dtype == FP32 or q.shape[-1] not in _FUSED_HEAD_DIMS or q.shape[1] < _FUSED_DECODE_HEADS
    return graph.add(layer, "attention")


def attention_from_primitives(
    qkv: QKV, mask: Tensor, softcap: float | None = None, sinks: Tensor | None = None
) -> Tensor:
    """Compute attention like `attention`, with features that its layer lacks; scores in fp32.

    softcap: scores become softcap * tanh(scores / softcap) before the mask. sinks: [N], a score per head that takes
    part in the softmax and has no value (https://arxiv.org/abs/2309.17453); or [B, N, S, 1], one per query.
    """
    q, k, v = _grouped(qkv)
    scores = _masked(_scores(q, k, softcap), mask)
    weights = softmax(scores) if sinks is None else _softmax_with_sinks(scores, sinks)
    return _of_heads(matmul(cast(weights, v.dtype), v), qkv[0])


def partial_attention(
    pieces: Sequence[QKV], mask: Tensor, softcap: float | None = None, value_size: int | None = None
) -> Tensor:
    """Compute attention to some of a query's keys, for `merged_attention`: [B, N, S, H + 2] in fp32.

    pieces: one query with its keys and values in one or two pieces, in the order of the mask's last axis, so that a
    cache is read in place. The result's last axis is attention as if there were no other keys, the largest score, and
    the sum of the exponentials of all scores minus the largest. If no key is visible, the largest score is `lowest`, so
    that the rest has no weight. value_size: how many of the first elements of values are needed; None for all.
    """
    grouped = [_grouped(piece) for piece in pieces]
    of_pieces = [_scores(q, k, softcap) for q, k, _ in grouped]
    scores = _masked(concat(of_pieces, -1), mask)
    largest = max_over(scores, -1)
    weights = exponential(scores - largest)
    total = unsqueeze(sum_over(weights, -1), scores.rank - 1)
    shares = split_like(cast(weights / total, pieces[0][2].dtype), of_pieces)
    products = [matmul(share, v) for share, (_, _, v) in zip(shares, grouped, strict=True)]
    attended = products[0] if len(products) == 1 else products[0] + products[1]
    attended = attended if value_size is None else take(attended, -1, 0, value_size)
    return concat([_of_heads(x, pieces[0][0]) for x in (cast(attended, FP32), largest, total)], -1)


def merged_attention(parts: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Merge attention to parts of the keys, [ranks, B, N, S, H + 2], into attention to all keys [B, N, S, H] in fp32.

    sinks: [N], see `attention_from_primitives`. Source: https://arxiv.org/abs/1805.02867, section 3.
    """
    size = parts.shape[-1] - 2
    attended, largest, total = split(parts, -1, (size, 1, 1))
    most = max_over(largest, 0)
    if sinks is not None:
        by_head = reshape(cast(sinks, FP32), (1, 1, parts.shape[2], 1, 1))
        most = maximum(most, by_head)
    shares = total * exponential(largest - most)
    sums = sum_over(shares, 0)
    if sinks is not None:
        sums = sums + squeeze(exponential(by_head - most), 0)
    return sum_over(attended * shares, 0) / sums


def _grouped(qkv: QKV) -> QKV:
    """Return queries, keys and values with an extra axis for heads that share keys, if some do."""
    q, k, v = qkv
    _, heads, length, size = q.shape  # -1 of no rows would be any number
    kv_heads = k.shape[1]
    if heads == kv_heads:
        return qkv
    q = reshape(q, (0, kv_heads, heads // kv_heads, length, size))  # [B, K, G, S, H]
    return q, unsqueeze(k, 2), unsqueeze(v, 2)


def _scores(q: Tensor, k: Tensor, softcap: float | None) -> Tensor:
    """Return scores in fp32: [B, N, S, T] or [B, K, G, S, T]."""
    scores = cast(matmul(q, k, transpose_b=True), FP32)
    return scores if softcap is None else tanh(scores / softcap) * softcap


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Return scores with the mask of `attention` applied."""
    if scores.rank > mask.rank:
        mask = _by_group(mask, scores.shape[2])
    return select(mask, scores, lowest(FP32)) if mask.dtype == BOOL else scores + cast(mask, FP32)


def _by_group(mask: Tensor, group: int) -> Tensor:
    """Return a mask [B, 1 or N, S, T] as [B, 1 or N / group, 1 or group, S, T]."""
    if mask.shape[1] == 1:
        return unsqueeze(mask, 2)
    by_token = reshape(transpose(mask, (0, 2, 1, 3)), (0, 0, mask.shape[1] // group, group, -1))
    return transpose(by_token, (0, 2, 3, 1, 4))


def _of_heads(x: Tensor, q: Tensor) -> Tensor:
    """Return x with the heads of q [B, N, S, H]: x may be [B, K, G, S, any] -> [B, N, S, any]."""
    return x if x.rank == q.rank else reshape(x, (0, *q.shape[1:3], x.shape[-1]))


def _softmax_with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Return the softmax over scores [B, N, S, T] or [B, K, G, S, T] and the sinks, without the sinks' share."""
    by_head = (1, *scores.shape[1:-2], 1, 1)
    column = cast(sinks, FP32) if sinks.rank > 1 else reshape(cast(sinks, FP32), by_head)
    column = take(scores, -1, 0, 1) * 0.0 + column
    return take_as_many(softmax(concat([scores, column], axis=-1)), -1, scores)


# Measured with TensorRT-RTX 1.7.1: head sizes with fused kernels in fp16 and bf16, and the fewest query heads with one
# for a single new token (S = 1).
_FUSED_HEAD_DIMS = (16, 32, 33, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256)
_FUSED_DECODE_HEADS = 4
