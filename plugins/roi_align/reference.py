"""RoI align in plain torch. Source: https://arxiv.org/abs/1703.06870, and ONNX's RoiAlign."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .op import RoiAlignAttributes


def reference(inputs: Sequence[Tensor | None], attributes: RoiAlignAttributes) -> list[Tensor]:
    """Return the mean or maximum of every bin's samples. x [B, C, H, W], rois [R, 4 or 5], images [R]."""
    x, rois, images = inputs
    assert x is not None
    assert rois is not None
    if images is None:
        images, rois = rois[:, 0], rois[:, 1:]
    return [torch.stack([_box(x[int(image)], box.double(), attributes)
                         for image, box in zip(images, rois, strict=True)])]  # fmt: skip


def _box(x: Tensor, box: Tensor, attributes: RoiAlignAttributes) -> Tensor:
    """Return [C, Ho, Wo] of one box (x1, y1, x2, y2)."""
    height, width = attributes.output_size
    rows = _places(float(box[1]), float(box[3]), height, x.shape[1], attributes)
    columns = _places(float(box[0]), float(box[2]), width, x.shape[2], attributes)
    y = torch.zeros(x.shape[0], height, width, dtype=x.dtype)
    for row in range(height):
        for column in range(width):
            samples = [_sample(x, at_y, at_x, attributes.mode) for at_y in rows[row] for at_x in columns[column]]
            stacked = torch.stack(samples)
            y[:, row, column] = stacked.mean(0) if attributes.mode == "avg" else stacked.amax(0)
    return y


def _places(low: float, high: float, bins: int, pixels: int, attributes: RoiAlignAttributes) -> list[list[float]]:
    """Return the positions of every bin's samples along an axis. pixels: the image's size."""
    shift = 0.5 if attributes.is_aligned else 0.0
    start, end = low * attributes.spatial_scale - shift, high * attributes.spatial_scale - shift
    length = end - start if attributes.is_aligned else max(end - start, 1.0)
    size = length / bins
    most = max(math.ceil(pixels / bins), 1)
    count = attributes.sampling_ratio or min(max(math.ceil(size), 1), most)
    return [[start + cell * size + (number + 0.5) * size / count for number in range(count)] for cell in range(bins)]


def _sample(x: Tensor, y: float, at: float, mode: str) -> Tensor:
    height, width = x.shape[1:]
    if y < -1 or y > height or at < -1 or at > width:
        return torch.zeros(x.shape[0], dtype=x.dtype)
    y, at = min(max(y, 0.0), height - 1.0), min(max(at, 0.0), width - 1.0)
    top, left = int(y), int(at)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    part_y, part_x = y - top, at - left
    corners = torch.stack(
        [
            x[:, top, left] * ((1 - part_y) * (1 - part_x)),
            x[:, top, right] * ((1 - part_y) * part_x),
            x[:, bottom, left] * (part_y * (1 - part_x)),
            x[:, bottom, right] * (part_y * part_x),
        ]
    )
    return corners.amax(0) if mode == "max_corner" else corners.sum(0)
