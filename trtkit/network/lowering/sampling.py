"""Bilinear sampling at pixel positions, in two forms, and multi-scale deformable attention on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, INT32

if TYPE_CHECKING:
    from trtkit.network.lowering.ops import Ops, T

GRID_SAMPLE, GATHER = "grid_sample", "gather"
FORMS = (GRID_SAMPLE, GATHER)
"""One GridSample layer, or gathers of the four corners, if GridSample cannot be trusted."""


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


@dataclass(frozen=True)
class FeatureLevels:
    """Feature levels, one after the other in `value`.

    sizes: (height, width) of each.
    points: sampled in each by every head of a query.
    is_discrete: take the nearest element, as in transformers' RT-DETR v2 with `decoder_method: discrete`.
    """

    sizes: tuple[tuple[int, int], ...]
    points: tuple[int, ...]
    is_discrete: bool = False

    @property
    def length(self) -> int:
        return sum(height * width for height, width in self.sizes)


def deformable_attention(
    o: Ops[T], value: T, locations: T, weights: T, levels: FeatureLevels, form: str = GRID_SAMPLE
) -> T:
    """Sum sampled values by weights: value [B, S, M, D] -> [B, Q, M * D]; sampling in fp32.

    M heads. locations: [B, Q, M, P, 2] as (x, y) in [0, 1] of each level. weights: [B, Q, M, P], where P
    counts the points of all levels, level by level. Source: https://arxiv.org/abs/2010.04159, equation 3; HF
    `MultiScaleDeformableAttention`.
    """
    heads, size = value.shape[2:]
    queries = o.size(weights, 1)
    with o.fp32():
        total = _sampled_sum(o, value, locations, weights, levels, form)  # [B * M, D, Q]
    by_head = o.reshape(total, [-1, heads * size, queries])
    return o.cast(o.transpose(by_head, (0, 2, 1)), value.dtype)


def _sampled_sum(o: Ops[T], value: T, locations: T, weights: T, levels: FeatureLevels, form: str) -> T:
    """Return [B * M, D, Q]."""
    size = value.shape[3]
    points = sum(levels.points)
    queries = o.size(weights, 1)
    columns = o.transpose(o.cast(value, FP32), (0, 2, 3, 1))  # [B, M, D, S]
    positions = o.reshape(o.transpose(o.cast(locations, FP32), (0, 2, 1, 3, 4)), [-1, queries, points, 2])
    weights = o.reshape(o.transpose(o.cast(weights, FP32), (0, 2, 1, 3)), [-1, 1, queries, points])
    samples, element, point = [], 0, 0
    for (height, width), count in zip(levels.sizes, levels.points, strict=True):
        image = o.reshape(o.take(columns, 3, element, height * width), [-1, size, height, width])
        at = o.take(positions, 2, point, count)  # [B * M, Q, points, 2]
        samples.append(_sample(o, image, at, levels.is_discrete, form))
        element, point = element + height * width, point + count
    return o.reduce("sum", o.concat(samples, 3) * weights, (3,))


def _sample(o: Ops[T], image: T, at: T, is_discrete: bool, form: str) -> T:
    """Sample image [B * M, D, H, W] at places in [0, 1] -> [B * M, D, Q, points]."""
    if form == GRID_SAMPLE and not is_discrete:
        return o.grid_sample(image, at * 2.0 - 1.0)
    height, width = image.shape[2:]
    x, y = o.split(at, 3)
    if not is_discrete:
        return bilinear(o, image, x * float(width) - 0.5, y * float(height) - 0.5, form)
    column = o.clip(o.unary("floor", x * float(width) + 0.5), 0.0, width - 1.0)
    row = o.clip(o.unary("floor", y * float(height) + 0.5), 0.0, height - 1.0)
    return bilinear(o, image, column, row, form)
