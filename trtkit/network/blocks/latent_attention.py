"""Multi-head latent attention, absorbed or expanded.

A head's keys and values are its part of `kv_b` times the cached vectors. Absorbed, queries go through that part instead
and all heads attend to the one cached vector of a token; only their outputs are expanded. This takes
N * (nope_dim + value_dim) * C products for each new token, and heads of C + R elements, for which TensorRT has no fused
attention. Expanded, those products are taken for each cached token in every call, and heads have nope_dim + R elements.
Source: https://arxiv.org/abs/2405.04434, section 2.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.positions import rotate
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.shape import concat, reshape, split, split_heads, take

if TYPE_CHECKING:
    from trtkit.models.attention import AttentionSpec
    from trtkit.models.latent import LatentSpec
    from trtkit.network.blocks.positions import Positions
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor
    from trtkit.network.ops.attention import QKV


@dataclass(frozen=True, eq=False)
class LatentHeads:
    """What a layer makes of its new tokens, and the parts of `kv_b`.

    queries: [B, N, S, nope_dim + R]; absorbed, [B, N, S, C + R]. vector: what is cached, [B, 1, S, C + R]: C elements
    that keys and values come from, and R that turn. keys: [1, N, nope_dim, C]. values: [1, N, value_dim, C].
    """

    queries: Tensor
    vector: Tensor
    keys: Tensor
    values: Tensor
    is_expanded: bool

    def attending(self, queries: Tensor, cached: Tensor) -> QKV:
        """Return what attention is between. queries: scaled. cached: [B, 1, T, C + R]."""
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
        """Return each head's output [B, N, S, value_dim] from what attention returned."""
        value_dim, rank = self.values.shape[2:]
        if self.is_expanded:
            return take(attended, -1, 0, value_dim)
        with attended.graph.scope("kv_b"):
            return matmul(take(attended, -1, 0, rank), self.values, transpose_b=True)

    def _filled_values(self) -> Tensor:
        """Return the part that values come from, with zeros up to the size of keys, which the native layer asks for."""
        missing = self.queries.shape[3] - self.values.shape[2]
        if missing <= 0:
            return self.values
        shape = (1, self.values.shape[1], missing, self.values.shape[3])
        zeros = self.values.graph.constant(np.zeros(shape, np.float32), "zeros", self.values.dtype)
        return concat([self.values, zeros], 2)


def latent_heads(
    weights: Weights, x: Tensor, specs: tuple[AttentionSpec, LatentSpec], positions: Positions, *, is_expanded: bool
) -> LatentHeads:
    """Return what attention is computed from, for x [B, S, D]."""
    spec, latent = specs
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
