"""RT-DETR's decoder: the encoder's best proposals become queries, whose boxes every layer refines.

Boxes and sampling points are computed in fp32 whatever the network's type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.transformer import add_and_norm, bidirectional_attention, feed_forward, relu_mlp, tokens_of
from trtkit.network.lowering.sampling import FeatureLevels, deformable_attention
from trtkit.network.lowering.trt_ops import TrtOps
from trtkit.network.ops.arithmetic import cast, softmax
from trtkit.network.ops.shape import concat, reshape, take, unsqueeze

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array, HeightWidth
    from trtkit.models.hybrids.rt_detr import RtDetrSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def write_decoder(weights: Weights, spec: RtDetrSpec, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `logits` [B, Q, classes] and `pred_boxes` [B, Q, 4] as (cx, cy, w, h) of `level_<i>` [B, D, h, w]."""
    graph, o = weights.graph, TrtOps(weights.graph)
    memory = concat([tokens_of(inputs[f"level_{index}"]) for index in range(len(spec.levels))], axis=1)
    x, boxes = _queries(weights, spec, memory)
    boxes = o.unary("sigmoid", boxes)
    for index in range(spec.num_layers):
        positions = relu_mlp(weights, "query_positions", cast(boxes, x.dtype), 2)
        with graph.scope(f"layers.{index}"):
            x = _layer(weights, spec, x, positions, memory, boxes)
            change = cast(relu_mlp(weights, "boxes", x, 3), FP32)
            boxes = o.unary("sigmoid", change + _logit(o, boxes))
    return {"logits": weights.linear("classes", x, has_bias=True), "pred_boxes": boxes}


def _queries(weights: Weights, spec: RtDetrSpec, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best proposals' states [B, Q, D] and their boxes before the sigmoid [B, Q, 4] in fp32."""
    graph, o = weights.graph, TrtOps(weights.graph)
    anchors, is_valid = anchor_logits(spec.levels)
    with graph.scope("proposals"):
        proposals = memory * graph.constant(is_valid, "is_valid", memory.dtype)
        proposals = norm_block(weights, "norm", weights.linear("dense", proposals, has_bias=True), spec.layer.norm)
        scores = o.reduce("max", cast(weights.linear("classes", proposals, has_bias=True), FP32), (2,))
        boxes = cast(relu_mlp(weights, "boxes", proposals, 3), FP32) + graph.constant(anchors, "anchors")
        _, best = o.top_k(scores, spec.num_queries)
        indices = unsqueeze(best, 2)  # [B, Q, 1]
        boxes = o.gather_nd(boxes, indices, batch_dims=1)
        return o.gather_nd(proposals, indices, batch_dims=1), boxes


def _layer(weights: Weights, spec: RtDetrSpec, x: Tensor, positions: Tensor, memory: Tensor, boxes: Tensor) -> Tensor:
    """Apply a layer to queries x [B, Q, D] and their positions."""
    layer = spec.layer
    placed = x + positions
    change = bidirectional_attention(weights, "attention", placed, placed, x, layer.attention)
    x = add_and_norm(weights, "attention_norm", x, change, layer.norm)
    change = _sampled_attention(weights, spec, x + positions, memory, boxes)
    x = add_and_norm(weights, "sampled_attention_norm", x, change, layer.norm)
    return feed_forward(weights, layer, x)


def _sampled_attention(weights: Weights, spec: RtDetrSpec, x: Tensor, memory: Tensor, boxes: Tensor) -> Tensor:
    """Attend to a few points around each query's box: x [B, Q, D], memory [B, S, D], boxes [B, Q, 4]."""
    D, heads = spec.layer.hidden_size, spec.layer.attention.num_attention_heads
    samples = len(spec.levels) * spec.points
    with weights.graph.scope("sampled_attention"):
        value = reshape(weights.linear("value", memory, has_bias=True), (0, 0, heads, D // heads))
        offsets = cast(weights.linear("offsets", x, has_bias=True), FP32)
        offsets = reshape(offsets, (0, 0, heads, samples, 2)) * (spec.offset_scale / spec.points)
        shares = softmax(reshape(cast(weights.linear("shares", x, has_bias=True), FP32), (0, 0, heads, samples)))
        centre, size = (unsqueeze(take(boxes, 2, start, 2), 2, 3) for start in (0, 2))
        levels = FeatureLevels(spec.levels, (spec.points,) * len(spec.levels), spec.is_discrete)
        locations = centre + offsets * size
        attended = deformable_attention(TrtOps(weights.graph), value, locations, shares, levels, weights.form)
        return weights.linear("o", attended, has_bias=True)


def _logit(o: TrtOps, x: Tensor) -> Tensor:
    """Return log(x / (1 - x)), both parts at least 1e-5."""
    low = 1e-5
    return o.unary("log", o.binary("max", x, low) / o.binary("max", 1.0 - x, low))


def anchor_logits(levels: tuple[HeightWidth, ...], grid_size: float = 0.05) -> tuple[Array, Array]:
    """Return an anchor for each position of each level before the sigmoid [1, S, 4], and whether it is used [1, S, 1].

    Anchors are larger at coarser levels; those too near the border are the largest finite value.
    """
    anchors = []
    for level, (height, width) in enumerate(levels):
        rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
        centre = np.stack([(columns + 0.5) / width, (rows + 0.5) / height], axis=-1).astype(np.float32)
        size = np.full_like(centre, grid_size * 2.0**level)
        anchors.append(np.concatenate([centre, size], axis=-1).reshape(1, -1, 4))
    joined = np.concatenate(anchors, axis=1)
    is_valid = np.all((joined > 0.01) & (joined < 0.99), axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        logits = np.log(joined / (1 - joined))
    largest = np.finfo(np.float32).max
    return np.where(is_valid, logits, largest).astype(np.float32), is_valid.astype(np.float32)
