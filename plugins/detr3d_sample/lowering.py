"""DETR3D feature sampling as one projection, and one GridSample or gather per level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.lowering.sampling import GRID_SAMPLE, bilinear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.ops import Ops, T

    from .op import Detr3dSampleAttributes


def lower(o: Ops[T], inputs: Sequence[T | None], attributes: Detr3dSampleAttributes, form: str) -> list[T]:
    """Sum the weighted features that cameras see at the points, over cameras and levels, in fp32."""
    points, matrices, weights, *features = inputs
    assert points is not None
    assert matrices is not None
    assert weights is not None
    cameras = matrices.shape[1]
    total: T | None = None
    with o.fp32():
        grid, is_seen = _project(o, points, matrices, attributes)
        shares = o.transpose(o.cast(weights, FP32), (0, 2, 3, 1))  # [B, N, L, Q]
        for level, feature in enumerate(features):
            assert feature is not None
            seen = _sample(o, feature, grid, form)  # [B * N, C, Q]
            by_camera = o.reshape(seen, [-1, cameras, feature.shape[2], o.size(points, 1)])
            share = o.take(shares, 2, level, 1) * is_seen  # [B, N, 1, Q]
            summed = o.reduce("sum", by_camera * share, (1,))  # [B, C, Q]
            total = summed if total is None else total + summed
    assert total is not None
    assert features[0] is not None
    return [o.cast(o.transpose(total, (0, 2, 1)), features[0].dtype)]


def _project(o: Ops[T], points: T, matrices: T, attributes: Detr3dSampleAttributes) -> tuple[T, T]:
    """Return the points' image positions [B * N, Q, 1, 2] in [-1, 1], and their visibility [B, N, 1, Q] as 0 or 1."""
    low, high = np.array(attributes.pc_range, np.float32).reshape(2, 3)
    metres = points * o.constant(high - low) + o.constant(low)  # [B, Q, 3]
    # Not a matrix product: TensorRT may compute it in TF32, whose 10-bit mantissa would cost pixels.
    rows = o.take(matrices, 2, 0, 3)  # [B, N, 3, 4]
    turned = o.reduce("sum", o.unsqueeze(o.take(rows, 3, 0, 3), 2) * o.unsqueeze(metres, 1, 3), (4,))  # [B, N, Q, 3]
    at = turned + o.transpose(o.take(rows, 3, 3, 1), (0, 1, 3, 2))
    x, y, depth = o.split(at, 3)  # [B, N, Q]
    divisor = o.binary("max", depth, _NEAREST_DEPTH)
    u = x / divisor * (2.0 / attributes.image_width) - 1.0
    v = y / divisor * (2.0 / attributes.image_height) - 1.0
    is_seen = (depth > _NEAREST_DEPTH) & (o.unary("abs", u) < 1.0) & (o.unary("abs", v) < 1.0)
    # Far coordinates would overflow as indices; anything outside the image is invisible, however far.
    grid = o.clip(o.stack([u, v], -1), -2.0, 2.0)  # [B, N, Q, 2]
    return o.reshape(grid, [-1, o.size(points, 1), 1, 2]), o.unsqueeze(o.cast(is_seen, FP32), 2)


def _sample(o: Ops[T], feature: T, grid: T, form: str) -> T:
    """Sample feature [B, N, C, H, W] -> [B * N, C, Q]."""
    sizes = [feature.shape[2], o.size(feature, 3), o.size(feature, 4)]
    image = o.reshape(o.cast(feature, FP32), [-1, *sizes])
    if form == GRID_SAMPLE:
        return o.squeeze(o.grid_sample(image, grid), 3)
    u, v = o.split(grid, 3)
    pixels = [((part + 1.0) * o.size_number(image, axis) - 1.0) * 0.5 for part, axis in ((u, 3), (v, 2))]
    return o.squeeze(bilinear(o, image, pixels[0], pixels[1], form), 3)


# In metres.
_NEAREST_DEPTH = 1e-5
