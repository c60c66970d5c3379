"""Modulated deformable convolution v2 in plain torch. Source: https://arxiv.org/abs/1811.11168, equation 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .op import DeformConvAttributes


def reference(inputs: Sequence[Tensor | None], attributes: DeformConvAttributes) -> list[Tensor]:
    """Compute y(p) = sum over k of w_k * x(p + p_k + dp_k) * m_k, one kernel point after another.

    x [N, C, H, W], weight [O, C / groups, Kh, Kw], offset [N, G * P * 2, Ho, Wo] as (y, x), bias [O],
    mask [N, G * P, Ho, Wo].
    """
    x, weight, offset, bias, mask = inputs
    assert x is not None
    assert weight is not None
    assert offset is not None
    count, channels = x.shape[:2]
    out, inner, kernel_height, kernel_width = weight.shape
    groups, points = attributes.offset_groups, kernel_height * kernel_width
    height, width = offset.shape[2:]
    offset = offset.reshape(count, groups, points, 2, height, width)
    weighted = torch.ones(count, groups, points, height, width, dtype=x.dtype)
    if mask is not None:
        weighted = mask.reshape(count, groups, points, height, width)
    image = x.reshape(count, groups, channels // groups, *x.shape[2:])
    total = torch.zeros(count, out, height, width, dtype=x.dtype)
    for point in range(points):
        row, column = divmod(point, kernel_width)
        y = _starts(height, 0, row, attributes).reshape(-1, 1) + offset[:, :, point, 0]
        x_at = _starts(width, 1, column, attributes) + offset[:, :, point, 1]
        seen = _bilinear(image, y, x_at) * weighted[:, :, point].unsqueeze(2)  # [N, G, C / G, Ho, Wo]
        by_group = seen.reshape(count, attributes.groups, inner, height, width)
        kernel = weight[:, :, row, column].reshape(attributes.groups, out // attributes.groups, inner)
        total += torch.einsum("ngihw,goi->ngohw", by_group, kernel).reshape(count, out, height, width)
    return [total if bias is None else total + bias.reshape(-1, 1, 1)]


def _starts(size: int, axis: int, tap: int, attributes: DeformConvAttributes) -> Tensor:
    """Return the position of a kernel point for each output pixel."""
    first = tap * attributes.dilation[axis] - attributes.padding[axis]
    return torch.arange(size, dtype=torch.float64) * attributes.stride[axis] + first


def _bilinear(image: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Sample image [N, G, C, H, W] at (y, x) [N, G, Ho, Wo]; zero outside."""
    height, width = image.shape[-2:]
    flat = image.flatten(-2)
    total = torch.zeros(*image.shape[:3], *y.shape[2:], dtype=image.dtype)
    top, left = torch.floor(y), torch.floor(x)
    for row, row_part in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, column_part in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            cell = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
            index = cell.flatten(2).unsqueeze(2).expand(-1, -1, image.shape[2], -1)
            picked = flat.gather(3, index).reshape(total.shape)
            total += picked * (row_part * column_part * inside).unsqueeze(2).to(image.dtype)
    return total
