"""Multi-head latent attention, absorbed: queries go to where the cached vectors are, and answers come back.

A head's key is its part of `kv_b` times the cached vector, so its score is the query times that part, times the vector.
All heads then attend to the one cached vector of a token, and only their outputs are expanded: this takes
N * (nope_dim + value_dim) * C products for each new token. Expanding keys and values instead would take them for each
cached token in every call; an engine has one network for prompts and for steps, and a step has one new token.
Source: https://arxiv.org/abs/2405.04434, section 2.1.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def latent_heads(
    weights: Weights, x: Tensor, spec: AttentionSpec, latent: LatentSpec, positions: Positions
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, what is cached of the new tokens, and what expands a head's output, for x [B, S, D].

    Queries are [B, N, S, C + R], the cached vectors [B, 1, S, C + R]: C elements that keys and values come from, and
    R that turn. The expansion is [1, N, value_dim, C].
    """
    nope, q_rope = split(_queries(weights, x, spec, latent), -1, (latent.nope_dim, latent.rope_dim))
    compressed = weights.linear("kv_a", x, has_bias=spec.has_qkv_bias)
    vector, k_rope = split(compressed, -1, (spec.latent_rank, latent.rope_dim))
    vector = split_heads(_normed(weights, "kv_a_norm", vector, spec), 1)
    q_rope = rotate("rope_q", q_rope, spec.rope, positions)
    k_rope = rotate("rope_k", split_heads(k_rope, 1), spec.rope, positions)
    with x.graph.scope("kv_b"):
        by_head = (1, spec.num_attention_heads, latent.sizes["kv_b"], spec.latent_rank)
        expansion = reshape(weights.get("weight"), by_head)
        keys, values = split(expansion, 2, (latent.nope_dim, latent.value_dim))
        absorbed = matmul(nope, keys)
    return concat([absorbed, q_rope], -1), concat([vector, k_rope], -1), values


def expand_values(attended: Tensor, values: Tensor) -> Tensor:
    """Return each head's output [B, N, S, value_dim] from what it attended to [B, N, S, C + R]."""
    with attended.graph.scope("kv_b"):
        return matmul(take(attended, -1, 0, values.shape[-1]), values, transpose_b=True)


def _queries(weights: Weights, x: Tensor, spec: AttentionSpec, latent: LatentSpec) -> Tensor:
    """Return queries [B, N, S, nope_dim + rope_dim]."""
    if latent.query_rank is None:
        return split_heads(weights.linear("q", x), spec.num_attention_heads)
    compressed = weights.linear("q_a", x, has_bias=spec.has_qkv_bias)
    return split_heads(weights.linear("q_b", _normed(weights, "q_a_norm", compressed, spec)), spec.num_attention_heads)


def _normed(weights: Weights, name: str, x: Tensor, spec: AttentionSpec) -> Tensor:
    return x if spec.norm is None else norm_block(weights, name, x, spec.norm)
