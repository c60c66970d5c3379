"""GridSample of volumes in plain torch, corner by corner. Source: torch's `grid_sample`, ONNX's GridSample."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .op import GridSample3dAttributes


def reference(inputs: Sequence[Tensor | None], attributes: GridSample3dAttributes) -> list[Tensor]:
    """Sample x [N, C, D, H, W] at grid [N, Do, Ho, Wo, 3] (x coordinate first) -> [N, C, Do, Ho, Wo]."""
    x, grid = inputs
    assert x is not None
    assert grid is not None
    sizes = x.shape[2:]
    positions = [_place(grid[..., 2 - axis], size, attributes) for axis, size in enumerate(sizes)]  # z, y, x
    total = torch.zeros(*x.shape[:2], *grid.shape[1:4], dtype=x.dtype)
    for steps in product((0, 1), repeat=3):
        index = torch.zeros(grid.shape[:4], dtype=torch.int64)
        share = torch.ones(grid.shape[:4], dtype=x.dtype)
        for step, position, size in zip(steps, positions, sizes, strict=True):
            corner = torch.floor(position) + step
            part = position - torch.floor(position)
            share = share * (part if step else 1 - part) * ((corner >= 0) & (corner < size))
            index = index * size + corner.clamp(0, size - 1).long()
        flat = index.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
        total += x.flatten(2).gather(2, flat).reshape(total.shape) * share.unsqueeze(1)
    return [total]


def _place(part: Tensor, size: int, attributes: GridSample3dAttributes) -> Tensor:
    """Return positions along an axis in elements, moved inside as the padding mode requires."""
    aligned = attributes.align_corners
    position = (part + 1) / 2 * (size - 1) if aligned else ((part + 1) * size - 1) / 2
    if attributes.padding == "reflection":
        first, span = (0.0, size - 1) if aligned else (-0.5, size)
        turns = torch.remainder(position - first, 2 * max(span, 1))
        position = torch.minimum(turns, 2 * max(span, 1) - turns) + first
    if attributes.padding != "zeros":
        position = position.clamp(0, size - 1)
    return torch.round(position) if attributes.mode == "nearest" else position
