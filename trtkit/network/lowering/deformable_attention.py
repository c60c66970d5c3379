"""Multi-scale deformable attention: few sampled points of each feature level in place of all keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32
from trtkit.network.lowering.sampling import GRID_SAMPLE, bilinear

if TYPE_CHECKING:
    from trtkit.network.lowering.ops import Ops, T


@dataclass(frozen=True)
class FeatureLevels:
    """Feature levels, one after the other in `value`.

    sizes: (height, width) of each. points: sampled in each by every head of a query.
    is_discrete: take the nearest element as transformers' RT-DETR v2 does with `decoder_method: discrete`.
    """

    sizes: tuple[tuple[int, int], ...]
    points: tuple[int, ...]
    is_discrete: bool = False

    @property
    def length(self) -> int:
        """Number of elements of all levels."""
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
