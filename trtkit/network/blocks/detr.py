"""DETR's encoder over a feature map and its decoder of object queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.transformer import (
    add_and_norm,
    bidirectional_attention,
    encoder_layer,
    feed_forward,
    projection_1x1,
    relu_mlp,
    sine_positions,
    tokens_of,
)
from trtkit.network.ops.activation import sigmoid
from trtkit.network.ops.shape import take

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.hybrids.detr import DetrSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def write_encoder(weights: Weights, spec: DetrSpec, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `memory` [B, h * w, D] of `feature` [B, C, h, w]."""
    x = projection_1x1(weights, "projection", tokens_of(inputs["feature"]))
    positions = _positions(weights, spec)
    for index in range(spec.encoder_layers):
        with weights.graph.scope(f"layers.{index}"):
            x = encoder_layer(weights, spec.encoder, x, positions)
    return {"memory": x}


def write_decoder(weights: Weights, spec: DetrSpec, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `logits` [B, Q, classes + 1] and `pred_boxes` [B, Q, 4] as (cx, cy, w, h) of `memory` [B, h * w, D]."""
    graph, memory = weights.graph, inputs["memory"]
    placed = memory + _positions(weights, spec)
    with graph.scope("queries"):
        queries = weights.get("weight", 3)
        x = queries * 0.0 + take(memory, 1, 0, 1) * 0.0  # [B, Q, D]: queries start at zero
    for index in range(spec.decoder_layers):
        with graph.scope(f"layers.{index}"):
            x = _decoder_layer(weights, spec, x, queries, memory, placed)
    x = norm_block(weights, "final_norm", x, spec.decoder.norm)
    boxes = sigmoid(relu_mlp(weights, "boxes", x, 3))
    return {"logits": weights.linear("classes", x, has_bias=True), "pred_boxes": boxes}


def _decoder_layer(
    weights: Weights, spec: DetrSpec, x: Tensor, positions: Tensor, values: Tensor, keys: Tensor
) -> Tensor:
    """Apply a layer to queries x and their positions. values, keys: the encoder's, without and with positions."""
    layer = spec.decoder
    placed = x + positions
    change = bidirectional_attention(weights, "attention", placed, placed, x, layer.attention)
    x = add_and_norm(weights, "attention_norm", x, change, layer.norm)
    change = bidirectional_attention(weights, "cross_attention", x + positions, keys, values, layer.attention)
    x = add_and_norm(weights, "cross_attention_norm", x, change, layer.norm)
    return feed_forward(weights, layer, x)


def _positions(weights: Weights, spec: DetrSpec) -> Tensor:
    """Return the places on the feature map [1, h * w, D]."""
    with weights.graph.scope("positions"):
        table = sine_positions(spec.feature_size, spec.encoder.hidden_size)
        return weights.graph.constant(table, "constant", weights.dtype)
