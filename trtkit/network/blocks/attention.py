"""Self-attention over a KV cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.arithmetic import clip
from trtkit.network.ops.attention import attention, attention_from_primitives, scale_query
from trtkit.network.ops.kv_cache import append_quantized, update_cache
from trtkit.network.ops.norm import layer_norm
from trtkit.network.ops.rotary import rotary_embedding
from trtkit.network.ops.shape import concat, merge_heads, reshape, split, split_heads, take, take_as_many, transpose

if TYPE_CHECKING:
    from trtkit.models.spec import AttentionSpec, RopeSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


@dataclass(frozen=True, eq=False)
class Past:
    """A layer's cached keys and values [B, K, T, H], and the position of each sequence's new ones [B].

    scales: of keys and values, for 8-bit caches.
    window: [T'], positions of the cached tokens that attention reads, from 0 on; None if it reads all T.
    """

    keys: Tensor
    values: Tensor
    write_indices: Tensor
    scales: tuple[float, float] | None = None
    window: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions of tokens. mask: as in `ops.attention`. kv_lengths: None if the attention layer does not use them.

    tables: cosines and sines of the layer's rotary embedding, by position or, for M-RoPE, by token; None if it has
    none. query_growth: [B, 1, S, 1] in fp32, factors of the queries; None if there are none.
    """

    ids: Tensor
    mask: Tensor
    tables: tuple[Tensor, Tensor] | None = None
    kv_lengths: Tensor | None = None
    query_growth: Tensor | None = None


def attention_block(
    weights: Weights, x: Tensor, spec: AttentionSpec, positions: Positions, past: Past
) -> tuple[Tensor, Past]:
    """Attend from x [B, S, D] to the cache and to itself; return [B, S, D] and the updated cache."""
    with x.graph.scope("attention"):
        q, k, v = _project(weights, x, spec)
        q, k = (_placed(weights, name, heads, spec, positions) for name, heads in (("q", q), ("k", k)))
        (keys, values), present = _remember(past, k, v)
        q = scale_query(q, spec.scale, positions.query_growth)
        attended = _attend(weights, (q, keys, values), positions, spec)
        return weights.linear(
            "o", merge_heads(attended), has_bias=spec.has_output_bias, ranks=spec.share.count
        ), present


def _remember(past: Past, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, Tensor], Past]:
    """Return all keys and values to attend to, and what the caches get: k and v [B, K, S, H] are new."""
    graph = k.graph
    scales = past.scales or (None, None)
    both = []
    for name, cache, new, scale in (("key", past.keys, k, scales[0]), ("value", past.values, v, scales[1])):
        with graph.scope(f"past_{name}"):
            if scale is None:
                updated = update_cache(cache, new, past.write_indices)
                both.append((updated if past.window is None else take_as_many(updated, 2, past.window), updated))
            else:
                both.append(append_quantized(cache, new, scale, past.window))
    (keys, new_keys), (values, new_values) = both
    return (keys, values), replace(past, keys=new_keys, values=new_values)


def _project(weights: Weights, x: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [B, N, S, H], keys and values [B, K, S, H]."""
    N, K, H = spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
    if spec.qkv == "separate":
        q, k, v = (weights.linear(name, x, has_bias=spec.has_qkv_bias) for name in "qkv")
    else:
        qkv = weights.linear("qkv", x, has_bias=spec.has_qkv_bias)
        if spec.qkv == "grouped":
            return _split_groups(_clipped(qkv, spec), spec)
        if spec.qkv == "fourths":
            return _split_fourths(_clipped(qkv, spec), spec)
        q, k, v = split(qkv, -1, (N * H, K * H, K * H))
    if spec.qk_norm == "all" and spec.norm is not None:
        q, k = (norm_block(weights, f"{name}_norm", x, spec.norm, spec.share.count) for name, x in (("q", q), ("k", k)))
    q, k, v = (_clipped(x, spec) for x in (q, k, v))
    return split_heads(q, N), split_heads(k, K), split_heads(v, K)


def _clipped(x: Tensor, spec: AttentionSpec) -> Tensor:
    return x if spec.qkv_clip is None else clip(x, spec.qkv_clip)


def _split_groups(qkv: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Cut [B, S, K * (G + 2) * H], in which each key/value head follows its G query heads."""
    N, K, H = spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
    group = N // K
    groups = reshape(qkv, (0, 0, K, group + 2, H))
    q = reshape(take(groups, 3, 0, group), (0, 0, N, H))
    k, v = (reshape(take(groups, 3, group + index, 1), (0, 0, K, H)) for index in (0, 1))
    q, k, v = (transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
    return q, k, v


def _split_fourths(qkv: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Cut [B, S, 3 * N * H] of four blocks `[q | v | k]`, each of a fourth of the heads."""
    N, H = spec.num_attention_heads, spec.head_dim
    blocks = reshape(qkv, (0, 0, 4, 3, N // 4 * H))
    q, v, k = (split_heads(reshape(take(blocks, 3, index, 1), (0, 0, N * H)), N) for index in range(3))
    return q, k, v


def _placed(weights: Weights, name: str, x: Tensor, spec: AttentionSpec, positions: Positions) -> Tensor:
    """Norm and rotate queries or keys x [B, heads, S, H], in the layer's order."""
    x = _rotate(f"rope_{name}", x, spec.rope, positions) if spec.is_rotated_first else x
    if spec.qk_norm in ("head", "each_head", "listed_heads"):
        x = _norm_heads(weights, f"{name}_norm", x, spec)
    return x if spec.is_rotated_first else _rotate(f"rope_{name}", x, spec.rope, positions)


def _norm_heads(weights: Weights, name: str, x: Tensor, spec: AttentionSpec) -> Tensor:
    """Norm each head of x [B, heads, S, H], with one weight [H] for all, or with a weight [heads, H]."""
    assert spec.norm is not None
    if spec.qk_norm == "head":
        return norm_block(weights, name, x, spec.norm)
    by_token = transpose(x, (0, 2, 1, 3))  # [B, S, heads, H]
    if spec.qk_norm == "each_head":
        return transpose(norm_block(weights, name, by_token, spec.norm), (0, 2, 1, 3))
    with x.graph.scope(name):
        rows = concat([weights.get(f"heads.{head}.weight", 2) for head in range(x.shape[1])], axis=0)
        return transpose(layer_norm(by_token, rows, None, spec.norm.eps), (0, 2, 1, 3))


def _rotate(name: str, x: Tensor, rope: RopeSpec | None, positions: Positions) -> Tensor:
    """Turn x [B, heads, S, H] by its positions, where the layer does."""
    if rope is None or positions.tables is None:
        return x
    with x.graph.scope(name):
        ids = None if rope.sections else positions.ids
        return rotary_embedding(x, positions.tables, ids, rope.dim, is_interleaved=rope.is_interleaved)


def _attend(weights: Weights, qkv: tuple[Tensor, Tensor, Tensor], positions: Positions, spec: AttentionSpec) -> Tensor:
    """Return softmax(q k^T) v [B, N, S, H], on the native layer where that can do all that is asked."""
    if spec.softcap is None and not spec.has_sinks:
        return attention(qkv, positions.mask, positions.kv_lengths)
    sinks = weights.get("sinks") if spec.has_sinks else None
    return attention_from_primitives(qkv, positions.mask, spec.softcap, sinks)
