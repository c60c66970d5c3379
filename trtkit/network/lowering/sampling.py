"""Bilinear sampling at pixel positions, in two forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, INT32

if TYPE_CHECKING:
    from trtkit.network.lowering.ops import Ops, T

GRID_SAMPLE, GATHER = "grid_sample", "gather"
FORMS = (GRID_SAMPLE, GATHER)
"""One GridSample layer, or gathers of the four corners: where GridSample cannot be trusted."""


def bilinear(o: Ops[T], image: T, x: T, y: T, form: str) -> T:
    """Sample image [B, C, H, W] at pixels (x, y), both [B, P, Q] in fp32 -> [B, C, P, Q] in fp32.

    Pixel centres are whole numbers; a corner outside the image counts as zero.
    """
    with o.fp32():
        image = o.cast(image, FP32)
        if form == GRID_SAMPLE:
            grid = o.stack([_normalized(o, image, 3, x), _normalized(o, image, 2, y)], -1)
            return o.grid_sample(image, grid)
        return _gathered(o, image, x, y)


def _normalized(o: Ops[T], image: T, axis: int, pixel: T) -> T:
    """Return positions in [-1, 1], the image's borders, from pixels: (2 p + 1) / size - 1."""
    size = o.size_number(image, axis)
    if isinstance(size, int | float):
        return pixel * (2 / size) + (1 / size - 1)
    return (pixel * 2.0 + 1.0) / size - 1.0


def _gathered(o: Ops[T], image: T, x: T, y: T) -> T:
    """Sum the four corners by their weights: rows of [B, H * W, C] picked by index."""
    width, height = o.size_number(image, 3), o.size_number(image, 2)
    row_size = o.size_number(image, 3, INT32)
    rows = o.transpose(o.reshape(image, [0, 0, -1]), (0, 2, 1))  # [B, H * W, C]
    left, top = o.unary("floor", x), o.unary("floor", y)
    right_part, bottom_part = x - left, y - top
    total: T | None = None
    for dy, y_part in ((0, 1.0 - bottom_part), (1, bottom_part)):
        for dx, x_part in ((0, 1.0 - right_part), (1, right_part)):
            column, row = left + float(dx), top + float(dy)
            weight = x_part * y_part * _is_inside(o, column, width) * _is_inside(o, row, height)
            above = o.cast(o.clip(row, 0.0, height - 1.0), INT32) * row_size
            cell = above + o.cast(o.clip(column, 0.0, width - 1.0), INT32)
            picked = o.gather_nd(rows, o.unsqueeze(cell, 3), batch_dims=1) * o.unsqueeze(weight, 3)
            total = picked if total is None else total + picked
    assert total is not None
    return o.transpose(total, (0, 3, 1, 2))


def _is_inside(o: Ops[T], position: T, size: float | T) -> T:
    """Return 1.0 where a whole position lies within the axis, else 0.0."""
    inside = (position > -0.5) & (position < size - 0.5)
    return o.cast(inside, FP32)
