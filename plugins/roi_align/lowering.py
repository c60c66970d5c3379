"""RoI align by sampling all boxes at once, from images stacked vertically."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.lowering.ops import T
from trtkit.network.lowering.sampling import bilinear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.ops import Ops

    from .op import RoiAlignAttributes


@dataclass(frozen=True)
class _Axis(Generic[T]):
    """Samples along an axis. at: positions [R, P * S], moved inside the image. is_seen: 1 if one counts, [R, P * S].

    share: 1 / samples per bin, [R, 1] or a number. bins: P. samples: S, the most samples that a bin can have.
    """

    at: T
    is_seen: T
    share: T | float
    bins: int
    samples: int


@dataclass(frozen=True)
class _Samples(Generic[T]):
    """Samples of all boxes. image: number of each box's image, [R, 1]."""

    rows: _Axis[T]
    columns: _Axis[T]
    image: T


def lower(o: Ops[T], inputs: Sequence[T | None], attributes: RoiAlignAttributes, form: str) -> list[T]:
    """Sample, mask samples that do not count, and reduce each bin."""
    x, rois, images = inputs
    assert x is not None
    assert rois is not None
    with o.fp32():
        rois = o.cast(rois, FP32)
        first = 0 if images is not None else 1
        image = o.unsqueeze(o.cast(images, FP32), 1) if images is not None else o.take(rois, 1, 0, 1)  # [R, 1]
        ends = [o.take(rois, 1, first + index, 1) for index in range(4)]  # x1, y1, x2, y2
        rows = _axis(o, x, 2, ends[1], ends[3], attributes)
        columns = _axis(o, x, 3, ends[0], ends[2], attributes)
        y = _joined(o, x, _Samples(rows, columns, image), attributes, form)
    return [o.cast(y, x.dtype)]


def _axis(o: Ops[T], x: T, axis: int, low: T, high: T, attributes: RoiAlignAttributes) -> _Axis[T]:
    """Return the samples along height or width. low, high: where boxes start and end, [R, 1]."""
    bins = attributes.output_size[axis - 2]
    shift = 0.5 if attributes.is_aligned else 0.0
    start = low * attributes.spatial_scale - shift
    length = high * attributes.spatial_scale - shift - start
    length = length if attributes.is_aligned else o.binary("max", length, 1.0)
    bin_size = length / float(bins)
    samples = attributes.sampling_ratio or max(math.ceil(x.shape[axis] / bins), 1)
    number = o.constant(np.tile(np.arange(samples, dtype=np.float32), bins)[None])  # [1, P * S]
    part = o.constant(np.repeat(np.arange(bins, dtype=np.float32), samples)[None])
    share: T | float = 1.0 / samples
    if not attributes.sampling_ratio:
        count = o.clip(o.unary("ceil", bin_size), 1.0, float(samples))  # [R, 1]
        share = 1.0 / count
    at = start + part * bin_size + (number + 0.5) * (bin_size * share)
    size = o.size_number(x, axis)
    seen = o.cast(o.unary("not", (at < -1.0)), FP32) * o.cast(o.unary("not", at > size), FP32)
    if not attributes.sampling_ratio:
        seen = seen * o.cast(number < count - 0.5, FP32)
    return _Axis(o.clip(at, 0.0, size - 1.0), seen, share, bins, samples)


def _joined(o: Ops[T], x: T, samples: _Samples[T], attributes: RoiAlignAttributes, form: str) -> T:
    """Return [R, C, Ho, Wo] in fp32."""
    rows, columns = samples.rows, samples.columns
    height, channels = o.size_number(x, 2), x.shape[1]
    tall = o.reshape(o.transpose(o.cast(x, FP32), (1, 0, 2, 3)), [1, channels, -1, o.size(x, 3)])  # [1, C, B * H, W]
    y = o.unsqueeze(rows.at + samples.image * height, 2)  # [R, Ho * S, 1]
    at = o.unsqueeze(columns.at, 1)  # [R, 1, Wo * S]
    points = [1, -1, columns.bins * columns.samples]
    x_at, y_at = o.reshape(y * 0.0 + at, points), o.reshape(y + at * 0.0, points)
    seen = o.reshape(o.unsqueeze(rows.is_seen, 2) * o.unsqueeze(columns.is_seen, 1), [1, *points])
    sampled = _sampled(o, tall, x_at, y_at, attributes.mode, form)
    split = [channels, -1, rows.bins, rows.samples, columns.bins, columns.samples]
    if attributes.mode == "avg":
        y = o.reduce("sum", o.reshape(sampled * seen, split), (3, 5))  # [C, R, Ho, Wo]
        y = o.transpose(y, (1, 0, 2, 3))
        return y * _spread(o, rows.share) * _spread(o, columns.share)
    # Samples outside the image count as zero; those that a bin does not have must not count.
    is_there = _is_there(o, rows, columns)
    sampled = o.reshape(sampled * seen, split)
    sampled = sampled if is_there is None else o.select(is_there, sampled, sampled * 0.0 - 3.0e38)
    return o.transpose(o.reduce("max", sampled, (3, 5)), (1, 0, 2, 3))


def _spread(o: Ops[T], share: T | float) -> T | float:
    return share if isinstance(share, float) else o.unsqueeze(share, 2, 3)


def _is_there(o: Ops[T], rows: _Axis[T], columns: _Axis[T]) -> T | None:
    """Return which samples bins have, [1, R, 1, S, 1, S]; None if all bins have equally many."""
    if isinstance(rows.share, float) or isinstance(columns.share, float):
        return None
    below = o.constant(np.arange(rows.samples, dtype=np.float32).reshape(1, 1, 1, -1, 1, 1) + 0.5)
    right = o.constant(np.arange(columns.samples, dtype=np.float32) + 0.5)
    counts = [o.reshape(1.0 / share, [1, -1, 1, 1, 1, 1]) for share in (rows.share, columns.share)]
    return (below < counts[0]) & (right < counts[1])


def _sampled(o: Ops[T], image: T, x: T, y: T, mode: str, form: str) -> T:
    """Return samples [1, C, P, Q]; in mode `max_corner`, the largest of each sample's weighted corners."""
    if mode != "max_corner":
        return bilinear(o, image, x, y, form)
    left, top = o.unary("floor", x), o.unary("floor", y)
    right_part, bottom_part = x - left, y - top
    best: T | None = None
    for dy, y_part in ((0.0, 1.0 - bottom_part), (1.0, bottom_part)):
        for dx, x_part in ((0.0, 1.0 - right_part), (1.0, right_part)):
            corner = bilinear(o, image, left + dx, top + dy, form) * o.unsqueeze(y_part * x_part, 1)
            best = corner if best is None else o.binary("max", best, corner)
    assert best is not None
    return best
