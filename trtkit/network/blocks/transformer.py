"""Attention without a cache, and the post-norm transformer layers of detectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.blocks.mlp import mlp_block
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.activation import relu
from trtkit.network.ops.attention import attention, scale_query
from trtkit.network.ops.linear import linear
from trtkit.network.ops.shape import merge_heads, reshape, split_heads, transpose

if TYPE_CHECKING:
    from trtkit.arrays import Array, HeightWidth
    from trtkit.models.attention import AttentionSpec, NormSpec
    from trtkit.models.hybrids.transformer import TransformerLayerSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def encoder_layer(weights: Weights, spec: TransformerLayerSpec, x: Tensor, positions: Tensor) -> Tensor:
    """Apply self-attention and MLP to x [B, S, D]; positions [1 or B, S, D]."""
    placed = x + positions
    x = add_and_norm(
        weights,
        "attention_norm",
        x,
        bidirectional_attention(weights, "attention", placed, placed, x, spec.attention),
        spec.norm,
    )
    return feed_forward(weights, spec, x)


def feed_forward(weights: Weights, spec: TransformerLayerSpec, x: Tensor) -> Tensor:
    """Apply a layer's MLP to x [B, S, D]."""
    return add_and_norm(weights, "mlp_norm", x, mlp_block(weights, "mlp", x, spec.mlp), spec.norm)


def tokens_of(feature: Tensor) -> Tensor:
    """[B, C, h, w] -> [B, h * w, C]."""
    return transpose(reshape(feature, (0, feature.shape[1], -1)), (0, 2, 1))


def projection_1x1(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Apply the 1 x 1 convolution `name` to tokens [B, S, C] -> [B, S, D]."""
    graph = weights.graph
    with graph.scope(name):
        kernel = weights.array("weight")
        matrix = graph.constant(kernel.reshape(1, *kernel.shape[:2]), "weight", weights.dtype)
        return linear(x, matrix, weights.get("bias", x.rank))


def relu_mlp(weights: Weights, name: str, x: Tensor, layers: int) -> Tensor:
    """Apply linear layers `name`.0, `name`.1, ... to x [B, Q, D], with ReLU between them."""
    with weights.graph.scope(name):
        for index in range(layers):
            x = weights.linear(str(index), x, has_bias=True)
            x = relu(x) if index < layers - 1 else x
    return x


def sine_positions(size: HeightWidth, hidden_size: int, temperature: float = 10000.0) -> Array:
    """Return DETR's sine positions of a feature map without padding, in fp32: [1, h * w, D].

    Rows and columns are counted from 1 and scaled to 2 pi; half of the channels are the row's, half the column's.
    """
    count = hidden_size // 2
    steps = np.arange(count) // 2 * 2 / count
    scale = np.float32(temperature) ** steps.astype(np.float32)
    rows, columns = (_waves(edge, scale) for edge in size)
    height, width = size
    grid = np.concatenate(
        [
            np.broadcast_to(rows[:, None], (height, width, count)),
            np.broadcast_to(columns[None], (height, width, count)),
        ],
        axis=-1,
    )
    return np.ascontiguousarray(grid.reshape(1, height * width, hidden_size))


def _waves(edge: int, scale: Array) -> Array:
    """Return sines and cosines of the positions along one edge: [edge, D / 2]."""
    positions = np.arange(1, edge + 1, dtype=np.float32)
    positions = positions / (positions[-1] + np.float32(1e-6)) * np.float32(2 * np.pi)
    angles = positions[:, None] / scale
    return np.stack([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=-1).reshape(edge, -1)


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
