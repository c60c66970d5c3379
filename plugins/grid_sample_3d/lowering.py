"""GridSample of volumes: by the native layer, by sampling two planes as images, or by gathering corners."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, INT32
from trtkit.network.lowering.sampling import GATHER, GRID_SAMPLE, bilinear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.ops import Ops, T

    from .op import GridSample3dAttributes

NATIVE, PLANES = "native", "planes"
FORMS = (NATIVE, PLANES, GATHER)
"""NATIVE: TensorRT documents GridSample for images only, but TensorRT-RTX 1.7.1 builds it for volumes."""


def lower(o: Ops[T], inputs: Sequence[T | None], attributes: GridSample3dAttributes, form: str) -> list[T]:
    """Sample x [N, C, D, H, W] at grid [N, Do, Ho, Wo, 3] (x coordinate first) -> [N, C, Do, Ho, Wo], in fp32."""
    x, grid = inputs
    assert x is not None
    assert grid is not None
    with o.fp32():
        volume, points = o.cast(x, FP32), o.cast(grid, FP32)
        if form == NATIVE:
            how = {"mode": attributes.mode, "padding": attributes.padding}
            y = o.grid_sample(volume, points, align_corners=attributes.align_corners, **how)
        else:
            pixels = _pixels(o, volume, points, attributes)
            sample = _by_planes if form == PLANES else _by_gathers
            y = sample(o, volume, pixels)
    return [o.cast(y, x.dtype)]


def _pixels(o: Ops[T], volume: T, points: T, attributes: GridSample3dAttributes) -> list[T]:
    """Return the positions to sample, in elements: x, y and z, each [N, Do, Ho, Wo]."""
    pixels = []
    for part, axis in zip(o.split(points, 4), (4, 3, 2), strict=True):
        size = o.size_number(volume, axis)
        twice = (part + 1.0) * (size - 1.0) if attributes.align_corners else (part + 1.0) * size - 1.0
        position = _inside(o, twice * 0.5, size, attributes)
        pixels.append(o.unary("round", position) if attributes.mode == "nearest" else position)
    return pixels


def _inside(o: Ops[T], position: T, size: float | T, attributes: GridSample3dAttributes) -> T:
    """Return positions moved inside as the padding mode requires; with zeros, to the first zero at the most."""
    if attributes.padding == "zeros":
        return o.clip(position, -1.0, size)
    if attributes.padding == "reflection":
        first = 0.0 if attributes.align_corners else -0.5
        span = _at_least_one(o, size - 1.0 if attributes.align_corners else size)
        away = o.unary("abs", position - first)
        flips = o.unary("floor", away / span)
        rest = away - flips * span
        is_odd = flips - o.unary("floor", flips * 0.5) * 2.0
        position = rest + is_odd * (span - rest * 2.0) + first
    return o.clip(position, 0.0, size - 1.0)


def _at_least_one(o: Ops[T], size: float | T) -> float | T:
    return max(size, 1.0) if isinstance(size, int | float) else o.binary("max", size, 1.0)


def _by_planes(o: Ops[T], volume: T, pixels: Sequence[T]) -> T:
    """Stack the planes vertically, with rows of zeros between them, and sample the two nearest ones."""
    x, y, z = pixels
    depth, height = o.size(volume, 2), o.size(volume, 3)
    rows, planes = o.size_number(volume, 3), o.size_number(volume, 2)
    stacked = o.reshape(o.pad(volume, 3, 1, 1), [0, 0, depth * (height + 2), o.size(volume, 4)])
    near = o.unary("floor", z)
    total: T | None = None
    for plane, share in ((near, 1.0 - (z - near)), (near + 1.0, z - near)):
        row = o.clip(plane, 0.0, planes - 1.0) * (rows + 2.0) + y + 1.0
        seen = _flat_bilinear(o, stacked, x, row) * o.unsqueeze(share * _exists(o, plane, planes), 1)
        total = seen if total is None else total + seen
    assert total is not None
    return total


def _flat_bilinear(o: Ops[T], image: T, x: T, y: T) -> T:
    """Sample image [N, C, H, W] at pixels [N, Do, Ho, Wo] -> [N, C, Do, Ho, Wo]."""
    depth, height, width = (o.size(x, axis) for axis in (1, 2, 3))
    flat = [-1, depth * height, width]
    seen = bilinear(o, image, o.reshape(x, flat), o.reshape(y, flat), GRID_SAMPLE)
    return o.reshape(seen, [0, 0, depth, height, width])


def _by_gathers(o: Ops[T], volume: T, pixels: Sequence[T]) -> T:
    """Return the weighted sum of the eight corners, gathered as rows of [N, D * H * W, C]."""
    rows = o.transpose(o.reshape(volume, [0, 0, -1]), (0, 2, 1))
    sizes = [o.size_number(volume, axis) for axis in (4, 3, 2)]
    strides = [1, o.size_number(volume, 4, INT32), o.size_number(volume, 3, INT32)]
    low = [o.unary("floor", position) for position in pixels]
    total: T | None = None
    for steps in product((0, 1), repeat=3):
        share: T | None = None
        index: T | None = None
        for axis in (2, 1, 0):
            corner = low[axis] + float(steps[axis])
            part = pixels[axis] - low[axis]
            weight = (part if steps[axis] else 1.0 - part) * _exists(o, corner, sizes[axis])
            share = weight if share is None else share * weight
            cell = o.cast(o.clip(corner, 0.0, sizes[axis] - 1.0), INT32)
            index = cell if index is None else index * strides[axis + 1] + cell
        assert share is not None
        assert index is not None
        picked = o.gather_nd(rows, o.unsqueeze(index, 4), batch_dims=1) * o.unsqueeze(share, 4)
        total = picked if total is None else total + picked
    assert total is not None
    return o.transpose(total, (0, 4, 1, 2, 3))


def _exists(o: Ops[T], position: T, size: float | T) -> T:
    """Return 1.0 where an integer position is within the axis, else 0.0."""
    return o.cast((position > -0.5) & (position < size - 0.5), FP32)
