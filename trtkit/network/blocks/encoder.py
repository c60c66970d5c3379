"""Attention without a cache: encoders over patches and feature maps, decoders over object queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.attention import attention, scale_query
from trtkit.network.ops.shape import merge_heads, split_heads

if TYPE_CHECKING:
    from trtkit.models.attention import AttentionSpec, NormSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def bidirectional_attention(
    weights: Weights,
    name: str,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    spec: AttentionSpec,
    mask: Tensor | None = None,
) -> Tensor:
    """Attend from tokens `queries` [B, S, D] to all tokens `keys` and `values` [B, T, D], all before their projection.

    mask: as in `ops.attention`. The weights are `q`, `k`, `v` and `o` of module `name`.
    """
    graph, heads = weights.graph, spec.num_attention_heads
    with graph.scope(name):
        q, k, v = (
            split_heads(weights.linear(role, x, has_bias=spec.has_qkv_bias), heads)
            for role, x in zip("qkv", (queries, keys, values), strict=True)
        )
        attended = merge_heads(attention((scale_query(q, spec.scale), k, v), mask))
        return weights.linear("o", attended, has_bias=spec.has_output_bias)


def add_and_norm(weights: Weights, name: str, x: Tensor, change: Tensor, norm: NormSpec) -> Tensor:
    """Add a part's result to its input, then normalize (post-norm, as in the original transformer)."""
    return norm_block(weights, name, x + change, norm)
