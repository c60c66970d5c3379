"""Self-attention over a KV cache: grouped heads, or multi-head latent attention, absorbed or expanded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.blocks.cache import remember, rotate
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.activation import sigmoid, softplus
from trtkit.network.ops.arithmetic import cast, clip
from trtkit.network.ops.attention import (
    attention,
    attention_from_primitives,
    merged_attention,
    partial_attention,
    scale_query,
)
from trtkit.network.ops.collective import gather_heads, scatter_heads
from trtkit.network.ops.gather import reorder
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.norm import layer_norm
from trtkit.network.ops.paged_attention import paged_attention
from trtkit.network.ops.shape import concat, merge_heads, reshape, split, split_heads, take, transpose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.models.attention import AttentionSpec, CrossSpec, GateSpec, LatentSpec
    from trtkit.network.blocks.cache import Positions, Reach
    from trtkit.network.blocks.rows import Rows
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor
    from trtkit.network.ops.attention import QKV


@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoder's output for the requests of some rows: keys and values [B, N, length, H] of one layer.

    mask: [B, 1, 1, length], added to scores; None if every request fills all positions.
    """

    rows: Rows
    keys: Tensor
    values: Tensor
    mask: Tensor | None = None


def attention_block(
    weights: Weights, x: Tensor, spec: AttentionSpec, positions: Positions, reaches: Sequence[Reach]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Attend from x [B, S, D] to the cache and to itself; return [B, S, D], and the updates of caches by name."""
    with x.graph.scope("attention"):
        latent = gate = None
        if spec.latent is not None:
            is_expanded = reaches[0].past.is_expanded
            latent = latent_heads(weights, x, spec, spec.latent, positions, is_expanded=is_expanded)
            q, new = latent.queries, {"latent": latent.vector}
        elif spec.cache_of is not None:
            q = split_heads(weights.linear("q", x, has_bias=spec.has_qkv_bias), spec.num_attention_heads)
            q, new = _placed(weights, "q", q, spec, positions), {}
        else:
            (q, k, v), gate = _project(weights, x, spec)
            q, k = (_placed(weights, name, heads, spec, positions) for name, heads in (("q", q), ("k", k)))
            v = v if spec.value_scale == 1 else v * spec.value_scale
            v = v if spec.value_dim is None else _filled(v, k, spec)
            v = v if spec.value_norm is None else norm_block(weights, "v_norm", v, spec.value_norm)
            new = {"key": k, "value": v}
        q, new = _of_context(q, new, spec)
        present: dict[str, Tensor] = {}
        for reach in reaches:
            present |= remember(reach.past, new)
        q = scale_query(q, spec.scale, positions.query_scaling)
        sinks = weights.get("sinks") if spec.has_sinks else None
        attended = concat([_attend(q, reach, spec, latent, sinks) for reach in reaches], 0)
        if spec.context.count > 1:
            attended = cast(merged_attention(scatter_heads(attended, spec.context.count), sinks), q.dtype)
        attended = weights.tokens.padded(attended)
        attended = attended if latent is None else latent.outputs(attended)
        attended = attended if spec.value_dim is None else take(attended, -1, 0, spec.value_dim)
        attended = attended if spec.gate is None else attended * _own_gates(weights, x, spec, spec.gate)
        merged = merge_heads(attended)
        merged = merged if gate is None else merged * sigmoid(gate)
        if spec.output_norm is not None:
            merged = norm_block(weights, "o_norm", merged, spec.output_norm, spec.share.count)
        return weights.linear("o", merged, has_bias=spec.has_output_bias, ranks=spec.share.count), present


def _of_context(q: Tensor, new: dict[str, Tensor], spec: AttentionSpec) -> tuple[Tensor, dict[str, Tensor]]:
    """Return queries, and new keys and values, of the heads of all ranks that share the caches' positions."""
    ranks, heads = spec.context.count, list(spec.context_heads)
    if ranks == 1:
        return q, new
    if len(heads) == spec.num_key_value_heads:  # every rank has the same heads
        return gather_heads([q], ranks)[0], new
    q, *others = gather_heads([q, *new.values()], ranks)
    others = others if not others or len(heads) == others[0].shape[1] else [reorder(x, heads, 1) for x in others]
    return q, dict(zip(new, others, strict=True))


def _filled(v: Tensor, k: Tensor, spec: AttentionSpec) -> Tensor:
    """Return values [B, K, S, H], padded with zeros to the size of keys."""
    missing = spec.head_dim - v.shape[-1]
    return concat([v, take(k, -1, 0, missing) * 0.0], -1) if missing else v


def _own_gates(weights: Weights, x: Tensor, spec: AttentionSpec, gate: GateSpec) -> Tensor:
    """Return the gates of each head's outputs [B, N, S, H or 1]."""
    gates = split_heads(weights.linear("z", x), spec.num_attention_heads)
    return sigmoid(gates) if gate.activation == "sigmoid" else cast(softplus(cast(gates, FP32)), x.dtype)


def cross_block(weights: Weights, x: Tensor, spec: CrossSpec, memories: Sequence[Encoded]) -> Tensor:
    """Attend from x [B, S, D] to an encoder's output for the requests; return [B, S, D]."""
    with x.graph.scope("cross"):
        q = split_heads(weights.linear("q", x, has_bias=spec.has_bias), spec.num_attention_heads)
        q, parts = scale_query(q, spec.scale), []
        for memory in memories:
            attended = attention((memory.rows.queries(q, 1), memory.keys, memory.values), memory.mask)
            parts.append(memory.rows.outputs(attended, 1))
        return weights.linear("o", merge_heads(concat(parts, 0)), has_bias=spec.has_bias)


def _project(weights: Weights, x: Tensor, spec: AttentionSpec) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Return queries [B, N, S, H], keys and values [B, K, S, H], and the gates [B, S, N * H] of all heads."""
    N, K, H = spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
    gate = None
    if spec.qkv in ("separate", "no_values"):
        q, k, *rest = (weights.linear(name, x, has_bias=spec.has_bias(name)) for name in spec.projections)
        v = rest[0] if rest else k
    else:
        qkv = weights.linear("qkv", x, has_bias=spec.has_qkv_bias)
        if spec.qkv == "grouped":
            return _split_groups(_clipped(qkv, spec), spec), None
        if spec.qkv == "fourths":
            return _split_fourths(_clipped(qkv, spec), spec), None
        q, k, v = split(qkv, -1, (N * H, K * H, K * H))
    if spec.is_gated:
        both = reshape(q, (0, 0, N, 2 * H))
        q, gate = (reshape(take(both, 3, start, H), (0, 0, N * H)) for start in (0, H))
    if spec.qk_norm == "all" and spec.norm is not None:
        q, k = (norm_block(weights, f"{name}_norm", x, spec.norm, spec.share.count) for name, x in (("q", q), ("k", k)))
    q, k, v = (_clipped(x, spec) for x in (q, k, v))
    return (split_heads(q, N), split_heads(k, K), split_heads(v, K)), gate


def _clipped(x: Tensor, spec: AttentionSpec) -> Tensor:
    return x if spec.qkv_clip is None else clip(x, spec.qkv_clip)


def _split_groups(qkv: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Split [B, S, K * (G + 2) * H], in which each key/value head follows its G query heads."""
    N, K, H = spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
    group = N // K
    groups = reshape(qkv, (0, 0, K, group + 2, H))
    q = reshape(take(groups, 3, 0, group), (0, 0, N, H))
    k, v = (reshape(take(groups, 3, group + index, 1), (0, 0, K, H)) for index in (0, 1))
    q, k, v = (transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
    return q, k, v


def _split_fourths(qkv: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Split [B, S, 3 * N * H], which has four blocks `[q | v | k]` with a fourth of the heads each."""
    N, H = spec.num_attention_heads, spec.head_dim
    blocks = reshape(qkv, (0, 0, 4, 3, N // 4 * H))
    q, v, k = (split_heads(reshape(take(blocks, 3, index, 1), (0, 0, N * H)), N) for index in range(3))
    return q, k, v


def _placed(weights: Weights, name: str, x: Tensor, spec: AttentionSpec, positions: Positions) -> Tensor:
    """Normalize and rotate queries or keys x [B, heads, S, H], in the layer's order."""
    x = rotate(f"rope_{name}", x, spec.rope, positions) if spec.is_rotated_first else x
    if spec.qk_norm in ("head", "each_head", "listed_heads"):
        x = _norm_heads(weights, f"{name}_norm", x, spec)
    return x if spec.is_rotated_first else rotate(f"rope_{name}", x, spec.rope, positions)


def _norm_heads(weights: Weights, name: str, x: Tensor, spec: AttentionSpec) -> Tensor:
    """Normalize each head of x [B, heads, S, H], with one weight [H] for all, or with a weight [heads, H]."""
    assert spec.norm is not None
    if spec.qk_norm == "head":
        return norm_block(weights, name, x, spec.norm)
    by_token = transpose(x, (0, 2, 1, 3))  # [B, S, heads, H]
    if spec.qk_norm == "each_head":
        return transpose(norm_block(weights, name, by_token, spec.norm), (0, 2, 1, 3))
    with x.graph.scope(name):
        rows = concat([weights.get(f"heads.{head}.weight", 2) for head in range(x.shape[1])], axis=0)
        return transpose(layer_norm(by_token, rows, None, spec.norm.eps), (0, 2, 1, 3))


def _attend(q: Tensor, reach: Reach, spec: AttentionSpec, latent: LatentHeads | None, sinks: Tensor | None) -> Tensor:
    """Return softmax(q k^T) v of some rows' tokens, by the native layer if it supports what is needed.

    q: [B, N, S, H] of all tokens.
    """
    rows, past = reach.past.rows, reach.past
    q = rows.queries(q, reach.fold)
    qkv = _attending(q, past.read, latent)
    if past.pages is not None:
        return rows.outputs(paged_attention(*qkv, past.pages, sinks), reach.fold)
    assert reach.mask is not None
    if spec.context.count > 1:
        pieces = [qkv, *([_attending(q, past.apart, latent)] if past.apart else [])]
        return rows.outputs(partial_attention(pieces, reach.mask, spec.softcap, spec.used_value_size), reach.fold)
    if spec.softcap is None and sinks is None and qkv[1].shape[-1] == qkv[2].shape[-1]:
        attended = attention(qkv, reach.mask, reach.kv_lengths)
    else:
        sinks = None if sinks is None else rows.by_query(sinks, spec.num_attention_heads, reach.fold)
        attended = attention_from_primitives(qkv, reach.mask, spec.softcap, sinks)
    return rows.outputs(attended, reach.fold)


def _attending(q: Tensor, read: Mapping[str, Tensor], latent: LatentHeads | None) -> QKV:
    """Return the operands of attention: scaled queries, and keys and values read from caches by name."""
    keys, *others = read.values()
    return (q, keys, others[0] if others else keys) if latent is None else latent.attending(q, keys)


@dataclass(frozen=True, eq=False)
class LatentHeads:
    """A layer's projections of its new tokens, and the parts of `kv_b`.

    queries: [B, N, S, nope_dim + R]; absorbed, [B, N, S, C + R]. vector: the cached one, [B, 1, S, C + R]: C elements
    that give keys and values, and R that are rotated. keys: [1, N, nope_dim, C]. values: [1, N, value_dim, C].
    """

    queries: Tensor
    vector: Tensor
    keys: Tensor
    values: Tensor
    is_expanded: bool

    def attending(self, queries: Tensor, cached: Tensor) -> QKV:
        """Return the operands of attention. queries: scaled. cached: [B, 1, T, C + R]."""
        if not self.is_expanded:
            return queries, cached, cached
        graph, (nope, rank) = queries.graph, self.keys.shape[2:]
        with graph.scope("kv_b"):
            vectors, k_rope = split(cached, -1, (rank, queries.shape[3] - nope))
            keys = matmul(vectors, self.keys, transpose_b=True)
            values = matmul(vectors, self._filled_values(), transpose_b=True)
            every_head = graph.constant(np.ones((1, keys.shape[1], 1, 1), np.float32), "heads", cached.dtype)
        return queries, concat([keys, k_rope * every_head], -1), values

    def outputs(self, attended: Tensor) -> Tensor:
        """Return each head's output [B, N, S, value_dim] from attention's result."""
        value_dim, rank = self.values.shape[2:]
        if self.is_expanded:
            return take(attended, -1, 0, value_dim)
        with attended.graph.scope("kv_b"):
            return matmul(take(attended, -1, 0, rank), self.values, transpose_b=True)

    def _filled_values(self) -> Tensor:
        """Return the part that gives values, zero-padded to the size of keys, as the native layer requires."""
        missing = self.queries.shape[3] - self.values.shape[2]
        if missing <= 0:
            return self.values
        shape = (1, self.values.shape[1], missing, self.values.shape[3])
        zeros = self.values.graph.constant(np.zeros(shape, np.float32), "zeros", self.values.dtype)
        return concat([self.values, zeros], 2)


def latent_heads(
    weights: Weights, x: Tensor, spec: AttentionSpec, latent: LatentSpec, positions: Positions, *, is_expanded: bool
) -> LatentHeads:
    """Return the inputs of latent attention for x [B, S, D]."""
    nope, q_rope = split(_queries(weights, x, spec, latent), -1, (latent.nope_dim, latent.rope_dim))
    compressed = weights.linear("kv_a", x, has_bias=spec.has_qkv_bias)
    vector, k_rope = split(compressed, -1, (spec.latent_rank, latent.rope_dim))
    vector = split_heads(_normed(weights, "kv_a_norm", vector, spec), 1)
    q_rope = rotate("rope_q", q_rope, spec.rope, positions)
    k_rope = rotate("rope_k", split_heads(k_rope, 1), spec.rope, positions)
    with x.graph.scope("kv_b"):
        by_head = (1, spec.num_attention_heads, latent.sizes["kv_b"], spec.latent_rank)
        keys, values = split(reshape(weights.get("weight"), by_head), 2, (latent.nope_dim, latent.value_dim))
        nope = nope if is_expanded else matmul(nope, keys)
    return LatentHeads(concat([nope, q_rope], -1), concat([vector, k_rope], -1), keys, values, is_expanded)


def _queries(weights: Weights, x: Tensor, spec: AttentionSpec, latent: LatentSpec) -> Tensor:
    """Return queries [B, N, S, nope_dim + rope_dim]."""
    if latent.query_rank is None:
        return split_heads(weights.linear("q", x), spec.num_attention_heads)
    compressed = weights.linear("q_a", x, has_bias=spec.has_qkv_bias)
    return split_heads(weights.linear("q_b", _normed(weights, "q_a_norm", compressed, spec)), spec.num_attention_heads)


def _normed(weights: Weights, name: str, x: Tensor, spec: AttentionSpec) -> Tensor:
    return x if spec.norm is None else norm_block(weights, name, x, spec.norm)
