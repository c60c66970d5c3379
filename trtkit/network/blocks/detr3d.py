"""DETR3D's decoder and box coder, on the tensors of a backbone; all of it in fp32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import BOOL, FP32, INT32
from trtkit.models.attention import NormSpec
from trtkit.network.blocks.norm import norm_block
from trtkit.network.custom_op import find
from trtkit.network.lowering.trt_ops import TrtOps
from trtkit.network.ops.activation import relu, sigmoid
from trtkit.network.ops.attention import attention, scale_query
from trtkit.network.ops.shape import concat, merge_heads, reshape, split_heads, take

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.hybrids.detr3d import Detr3dSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor

_NORM = NormSpec("layer", 1e-5, has_bias=True)
_EPSILON = 1e-5  # of inverse_sigmoid
# Places in a box code: cx, cy, w, l, cz, h, sin, cos, vx, vy; sizes are logarithms.
_XY, _SIZES_XY, _Z, _SIZE_Z, _SIN, _COS, _VELOCITY = (0, 2), (2, 2), (4, 1), (5, 1), (6, 1), (7, 1), (8, 2)


def write_detr3d_decoder(weights: Weights, spec: Detr3dSpec, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the boxes that queries find in `level_<i>` [B, N, C, h, w] by the cameras' `lidar2img` [B, N, 4, 4].

    `scores`, `labels`, `is_inside` [B, K] and `boxes` [B, K, 9] (cx, cy, cz, w, l, h, yaw, vx, vy, in metres, radians
    and metres a second), best first; `logits` [B, Q, classes] and `codes` [B, Q, 10] of all queries.
    """
    cameras = _Cameras(weights, spec, inputs)
    position, x = cameras.queries()
    reference = sigmoid(weights.linear("reference_points", position, has_bias=True))
    codes = reference
    for index in range(spec.num_layers):
        with weights.graph.scope(f"layers.{index}"):
            x = _layer(weights, spec, _Queries(x, position, reference), cameras)
            codes = _branch(weights, "box", x, step=2)
            reference = _refined(codes, reference)
    logits = _branch(weights, "classes", x, step=3)
    with weights.graph.scope("coder"):
        codes = _in_metres(codes, reference, spec)
        best = _best(logits, codes, spec)
    return {**best, "logits": logits, "codes": codes}


@dataclass(frozen=True)
class _Queries:
    """What a layer starts from: states and positions [B, Q, D], reference points [B, Q, 3]."""

    x: Tensor
    position: Tensor
    reference: Tensor


class _Cameras:
    """Inputs of all layers: feature maps, projections, and the number of sequences in the batch."""

    def __init__(self, weights: Weights, spec: Detr3dSpec, inputs: Mapping[str, Tensor]) -> None:
        self._weights, self._spec, self.lidar2img = weights, spec, inputs["lidar2img"]
        sizes = enumerate(spec.levels)
        self.maps = [
            reshape(inputs[f"level_{index}"], (-1, spec.cameras, spec.hidden_size, *size)) for index, size in sizes
        ]
        self._sample = find("Detr3dSample")

    def queries(self) -> tuple[Tensor, Tensor]:
        """Return position and content of every query, [B, Q, D] each."""
        D = self._spec.hidden_size
        with self._weights.graph.scope("query_embedding"):
            both = self._weights.get("weight", 3)
            zero = take(reshape(self.lidar2img, (0, -1)), 1, 0, 1) * 0.0  # gives the queries a batch
            both = both + reshape(zero, (0, 1, 1))
            return take(both, 2, 0, D), take(both, 2, D, D)

    def seen(self, reference: Tensor, shares: Tensor) -> Tensor:
        """Return the features at points [B, Q, 3], weighted by shares [B, Q, N, L]: [B, Q, D]."""
        spec, op = self._spec, self._sample
        attributes = op.attributes(image_height=spec.image[0], image_width=spec.image[1], pc_range=spec.pc_range)
        inputs = [reference, self.lidar2img, shares, *self.maps]
        return op.lower(TrtOps(reference.graph), inputs, attributes, op.form(self._weights.form))[0]


def _layer(weights: Weights, spec: Detr3dSpec, queries: _Queries, cameras: _Cameras) -> Tensor:
    """Apply a post-norm layer."""
    x, position = queries.x, queries.position
    with weights.graph.scope("attention"):
        x = x + _self_attention(weights, spec, x + position, x)
    x = norm_block(weights, "norm.0", x, _NORM)
    with weights.graph.scope("cross"):
        shares = sigmoid(weights.linear("weights", x + position, has_bias=True))
        shares = reshape(shares, (0, 0, spec.cameras, len(spec.levels)))
        gathered = weights.linear("o", cameras.seen(queries.reference, shares), has_bias=True)
        x = gathered + x + _position_encoder(weights, inverse_sigmoid(queries.reference))
    x = norm_block(weights, "norm.1", x, _NORM)
    with weights.graph.scope("ffn"):
        x = x + weights.linear("down", relu(weights.linear("up", x, has_bias=True)), has_bias=True)
    return norm_block(weights, "norm.2", x, _NORM)


def _self_attention(weights: Weights, spec: Detr3dSpec, at: Tensor, x: Tensor) -> Tensor:
    """Self-attention of queries: queries and keys from `at`, values from x.

    The weights of q, k and v are one matrix.
    """
    D, heads = spec.hidden_size, spec.num_attention_heads
    q, k, v = (split_heads(part, heads) for part in weights.linear_by_rows("qkv", (at, at, x)))
    attended = attention((scale_query(q, (D // heads) ** -0.5), k, v), None)
    return weights.linear("o", merge_heads(attended), has_bias=True)


def _position_encoder(weights: Weights, x: Tensor) -> Tensor:
    """Embed points as features: twice linear, norm, ReLU."""
    for index in (0, 3):
        x = weights.linear(f"position.{index}", x, has_bias=True)
        x = relu(norm_block(weights, f"position.{index + 1}", x, _NORM))
    return x


def _branch(weights: Weights, name: str, x: Tensor, step: int) -> Tensor:
    """Apply three linear layers with ReLUs between; class branches have norms before the ReLUs.

    step: between two layers, in the checkpoint's module numbers.
    """
    with weights.graph.scope(name):
        for index in (0, step):
            x = weights.linear(str(index), x, has_bias=True)
            x = relu(norm_block(weights, str(index + 1), x, _NORM) if name == "classes" else x)
        return weights.linear(str(2 * step), x, has_bias=True)


def inverse_sigmoid(x: Tensor) -> Tensor:
    """Return log(x / (1 - x)) of x in 0 to 1, both sides of the fraction at least 1e-5."""
    o = TrtOps(x.graph)
    above, below = o.binary("max", x, _EPSILON), o.binary("max", 1.0 - x, _EPSILON)
    return o.unary("log", above / below)


def _refined(codes: Tensor, reference: Tensor) -> Tensor:
    """Move reference points [B, Q, 3] by the offsets in a layer's codes [B, Q, 10], as logits."""
    moved = concat([take(codes, 2, *_XY), take(codes, 2, *_Z)], 2)
    return sigmoid(moved + inverse_sigmoid(reference))


def _in_metres(codes: Tensor, centre: Tensor, spec: Detr3dSpec) -> Tensor:
    """Return codes with centers in meters, converted from 0 to 1 of the range."""
    low, high = np.array(spec.pc_range, np.float32).reshape(2, 1, 1, 3)
    centre = centre * codes.graph.constant(high - low, "extent") + codes.graph.constant(low, "origin")
    parts = [take(centre, 2, 0, 2), take(codes, 2, *_SIZES_XY), take(centre, 2, 2, 1), take(codes, 2, 5, 5)]
    return concat(parts, 2)


def _best(logits: Tensor, codes: Tensor, spec: Detr3dSpec) -> dict[str, Tensor]:
    """Return the best boxes over all queries and classes, without NMS, as the authors' NMSFreeCoder does."""
    o = TrtOps(logits.graph)
    scores, index = o.top_k(reshape(sigmoid(logits), (0, -1)), spec.max_detections)
    query = o.binary("floor_div", index, spec.num_classes)
    labels = index - query * spec.num_classes
    chosen = o.gather_nd(codes, o.unsqueeze(query, 2), batch_dims=1)  # [B, K, 10]
    sizes = [o.unary("exp", take(chosen, 2, *span)) for span in (_SIZES_XY, _SIZE_Z)]
    yaw = _atan2(o, take(chosen, 2, *_SIN), take(chosen, 2, *_COS))
    centre = concat([take(chosen, 2, *_XY), take(chosen, 2, *_Z)], 2)
    boxes = concat([centre, *sizes, yaw, take(chosen, 2, *_VELOCITY)], 2)
    low, high = (o.constant(edge) for edge in np.array(spec.post_center_range, np.float32).reshape(2, 1, 1, 3))
    is_outside = o.binary("or", centre < low, centre > high)
    is_inside = o.reduce("sum", o.cast(is_outside, FP32), (2,)) < 0.5
    return {"scores": scores, "labels": o.cast(labels, INT32), "boxes": boxes, "is_inside": o.cast(is_inside, BOOL)}


def _atan2(o: TrtOps, y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of (x, y) in -pi to pi; 0 for the origin."""
    is_zero = o.binary("eq", x, 0.0)
    quotient = y / o.select(is_zero, o.constant(np.full((1, 1, 1), np.finfo(np.float32).tiny)), x)
    half_turn = o.select(y < 0.0, o.constant(np.full((1, 1, 1), -math.pi, np.float32)), math.pi)
    angle = o.graph.add(o.graph.network.add_unary(quotient.trt, o.graph.backend.trt.UnaryOperation.ATAN), "atan")
    return angle + o.select(x < 0.0, half_turn, 0.0)
