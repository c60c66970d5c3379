"""Multi-scale deformable attention in plain torch. Source: https://arxiv.org/abs/2010.04159, equation 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trtkit.arrays import HeightWidth

    from .op import MsDeformAttnAttributes


def reference(inputs: Sequence[Tensor | None], attributes: MsDeformAttnAttributes) -> list[Tensor]:
    """Sum the sampled values of each query and head, one level and one point after another.

    value [B, S, M, D], locations [B, Q, M, L, P, 2] as (x, y) in [0, 1], weights [B, Q, M, L, P] -> [B, Q, M * D].
    """
    value, locations, weights = inputs
    assert value is not None
    assert locations is not None
    assert weights is not None
    batch, queries, heads, _, points = weights.shape
    total = torch.zeros(batch, queries, heads, value.shape[3], dtype=value.dtype)
    start = 0
    for level, (height, width) in enumerate(attributes.sizes()):
        image = value[:, start : start + height * width]
        start += height * width
        for point in range(points):
            x = locations[:, :, :, level, point, 0] * width - 0.5
            y = locations[:, :, :, level, point, 1] * height - 0.5
            total += _bilinear(image, (height, width), x, y) * weights[:, :, :, level, point, None]
    return [total.flatten(2)]


def _bilinear(image: Tensor, size: HeightWidth, x: Tensor, y: Tensor) -> Tensor:
    """Sample image [B, H * W, M, D] at pixels [B, Q, M] -> [B, Q, M, D]; zero outside."""
    height, width = size
    total = torch.zeros(*x.shape, image.shape[3], dtype=image.dtype)
    top, left = torch.floor(y), torch.floor(x)
    for row, row_part in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, column_part in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            cell = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
            picked = image.gather(1, cell.unsqueeze(3).expand(-1, -1, -1, image.shape[3]))
            total += picked * (row_part * column_part * inside).unsqueeze(3)
    return total
