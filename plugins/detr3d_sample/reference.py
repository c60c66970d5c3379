"""DETR3D feature sampling in plain torch. Source: `feature_sampling` of https://github.com/WangYueFt/detr3d (MIT)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .op import Detr3dSampleAttributes

_NEAREST_DEPTH = 1e-5  # metres


def reference(inputs: Sequence[Tensor | None], attributes: Detr3dSampleAttributes) -> list[Tensor]:
    """Sum the features that cameras see at points, over cameras and levels.

    points [B, Q, 3] in [0, 1] of `pc_range`, lidar2img [B, N, 4, 4], weights [B, Q, N, L] (after the sigmoid),
    features [B, N, C, H, W] -> [B, Q, C].
    """
    points, matrices, weights, *features = [x for x in inputs if x is not None]
    low, high = torch.tensor(attributes.pc_range, dtype=points.dtype).reshape(2, 3)
    metres = points * (high - low) + low
    corner = torch.cat([metres, torch.ones_like(metres[..., :1])], -1)
    at = torch.einsum("bnij,bqj->bnqi", matrices, corner)
    depth = at[..., 2]
    pixels = at[..., :2] / depth.clamp(min=_NEAREST_DEPTH).unsqueeze(-1)
    size = torch.tensor([attributes.image_width, attributes.image_height], dtype=points.dtype)
    position = (pixels / size - 0.5) * 2  # [B, N, Q, 2]
    is_seen = (depth > _NEAREST_DEPTH) & (position.abs() < 1).all(-1)
    total = torch.zeros(*points.shape[:2], features[0].shape[2], dtype=features[0].dtype)
    for level, feature in enumerate(features):
        share = weights[..., level].transpose(1, 2) * is_seen  # [B, N, Q]
        total += torch.einsum("bncq,bnq->bqc", _sample(feature, position), share)
    return [total]


def _sample(feature: Tensor, position: Tensor) -> Tensor:
    """Sample feature [B, N, C, H, W] at [B, N, Q, 2] in [-1, 1] -> [B, N, C, Q]; zero outside."""
    height, width = feature.shape[-2:]
    x = ((position[..., 0] + 1) * width - 1) / 2
    y = ((position[..., 1] + 1) * height - 1) / 2
    flat = feature.flatten(-2)
    total = torch.zeros(*feature.shape[:3], x.shape[2], dtype=feature.dtype)
    top, left = torch.floor(y), torch.floor(x)
    for row, row_part in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, column_part in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
            picked = flat.gather(3, index.unsqueeze(2).expand(-1, -1, flat.shape[2], -1))
            # Far outside, the interpolation weights may be infinite or NaN.
            share = torch.where(inside, row_part * column_part, 0.0)
            total += picked * share.unsqueeze(2)
    return total
