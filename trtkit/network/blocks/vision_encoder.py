"""The encoder of ViT, DINOv2 and SigLIP: patches to tokens, pre-norm layers, a head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.blocks.mlp import mlp_block
from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.transformer import bidirectional_attention
from trtkit.network.ops.activation import activation
from trtkit.network.ops.arithmetic import cast, mean
from trtkit.network.ops.attention import attention, scale_query
from trtkit.network.ops.shape import concat, merge_heads, reshape, split_heads, take, transpose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array
    from trtkit.models.hybrids.vision_encoder import VisionEncoderSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def write_vision_encoder(weights: Weights, spec: VisionEncoderSpec, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the hidden states of `embeddings` [B, D, h, w], class token first, or the head's outputs.

    `logits` [B, classes]; or `last_hidden_state` [B, S, D] and `pooler_output` [B, D].
    """
    x = _tokens(weights, spec, inputs["embeddings"])
    for index in range(spec.num_layers):
        with weights.graph.scope(f"layers.{index}"):
            x = _layer(weights, spec, x)
    x = norm_block(weights, "final_norm", x, spec.norm)
    pooled = _head(weights, spec, x)
    if spec.head.startswith("classifier"):
        return {"logits": pooled}
    return {"last_hidden_state": x, "pooler_output": pooled}


def _tokens(weights: Weights, spec: VisionEncoderSpec, patches: Tensor) -> Tensor:
    """Return patches in row order with positions added, after class token and registers: [B, S, D]."""
    x = transpose(reshape(patches, (0, spec.hidden_size, -1)), (0, 2, 1))
    table, graph = _positions(weights, spec), weights.graph
    first = int(spec.has_class_token)
    with graph.scope("positions"):
        x = x + graph.constant(table[:, first:], "constant", weights.dtype)
    if not spec.has_class_token:
        return x
    heads = [_array(weights, "class_token") + table[:, :1]]
    if spec.num_register_tokens:
        heads.append(_array(weights, "register_tokens"))
    with graph.scope("class_token"):
        row = graph.constant(np.concatenate(heads, axis=1), "constant", weights.dtype)
        zero = take(x, 1, 0, 1) * 0.0  # [B, 1, D]: gives the constant a batch
        return concat([row + zero, x], axis=1)


def _positions(weights: Weights, spec: VisionEncoderSpec) -> Array:
    """Return the position of every patch, and of the class token before them, in fp32: [1, S, D]."""
    name = "positions" if spec.has_class_token else "positions.weight"
    stored = _array(weights, name).reshape(1, -1, spec.hidden_size)
    if spec.grid == spec.position_grid:
        return stored
    first = int(spec.has_class_token)
    return np.concatenate([stored[:, :first], _resized(stored[:, first:], spec)], axis=1)


def _resized(table: Array, spec: VisionEncoderSpec) -> Array:
    """Resize position embeddings [1, h * w, D] to the grid by cubic interpolation, as in transformers."""
    import torch

    grid = torch.from_numpy(table).reshape(1, *spec.position_grid, -1).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(
        grid, size=spec.grid, mode="bicubic", align_corners=False, antialias=spec.resize_has_antialias
    )
    array: Array = resized.permute(0, 2, 3, 1).reshape(1, -1, spec.hidden_size).numpy()
    return array


def _array(weights: Weights, role: str) -> Array:
    """Return a weight of the current scope as an array in fp32."""
    array: Array = np.asarray(weights.array(role)).astype(np.float32)
    return array


def _layer(weights: Weights, spec: VisionEncoderSpec, x: Tensor) -> Tensor:
    """Apply a pre-norm layer to x [B, S, D]."""
    normed = norm_block(weights, "attention_norm", x, spec.norm)
    change = bidirectional_attention(weights, "attention", normed, normed, normed, spec.attention)
    x = x + _scaled(weights, spec, "attention_scale", change)
    change = mlp_block(weights, "mlp", norm_block(weights, "mlp_norm", x, spec.norm), spec.mlp)
    return x + _scaled(weights, spec, "mlp_scale", change)


def _scaled(weights: Weights, spec: VisionEncoderSpec, role: str, x: Tensor) -> Tensor:
    """Scale by channel, if the model does (arXiv:2103.17239)."""
    return x * weights.get(role, x.rank) if spec.has_layer_scale else x


def _head(weights: Weights, spec: VisionEncoderSpec, x: Tensor) -> Tensor:
    """Return logits or the pooled hidden state of x [B, S, D]."""
    D = spec.hidden_size
    if spec.head == "attention":
        return _attention_head(weights, spec, x)
    first = take(x, 1, 0, 1)
    if spec.head == "classifier_with_mean":
        begin, count = 1 + spec.num_register_tokens, spec.grid[0] * spec.grid[1]
        average = cast(mean(cast(take(x, 1, begin, count), FP32), axis=1), x.dtype)
        first, D = concat([first, average], axis=-1), 2 * D
    row = reshape(first, (0, D))
    if spec.head.startswith("classifier"):
        return weights.linear("classifier", row, has_bias=True)
    if spec.head == "pooler":
        return activation(weights.linear("pooler", row, has_bias=True), spec.pooler_activation)
    return row


def _attention_head(weights: Weights, spec: VisionEncoderSpec, x: Tensor) -> Tensor:
    """Return the attention output of one learned query over x [B, S, D], plus an MLP of it: [B, D]."""
    D, heads = spec.hidden_size, spec.attention.num_attention_heads
    with weights.graph.scope("head"):
        query = weights.get("query") + take(x, 1, 0, 1) * 0.0
        with weights.graph.scope("attention"):
            q, k, v = (split_heads(part, heads) for part in weights.linear_by_rows("qkv", (query, x, x)))
            attended = merge_heads(attention((scale_query(q, spec.attention.scale), k, v)))
            y = weights.linear("o", attended, has_bias=True)
        y = y + mlp_block(weights, "mlp", norm_block(weights, "norm", y, spec.norm), spec.mlp)
        return reshape(y, (0, D))
