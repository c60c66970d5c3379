"""Modulated deformable convolution v2 as sampling and one matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.lowering.sampling import bilinear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import HeightWidth
    from trtkit.network.lowering import Ops
    from trtkit.network.lowering.ops import T

    from .op import DeformConvAttributes


def lower(o: Ops[T], inputs: Sequence[T | None], attributes: DeformConvAttributes, form: str) -> list[T]:
    """Sample every kernel point of every output pixel at once, apply the mask, multiply by the kernel.

    G offset groups, P = Kh * Kw kernel points.
    """
    x, weight, offset, bias, mask = inputs
    assert x is not None
    assert weight is not None
    assert offset is not None
    with o.fp32():
        columns = _columns(o, x, offset, mask, (weight.shape[2], weight.shape[3]), attributes, form)
    y = _convolved(o, o.cast(columns, x.dtype), weight, offset, attributes.groups)
    return [y if bias is None else y + o.reshape(bias, [1, -1, 1, 1])]


def _columns(
    o: Ops[T], x: T, offset: T, mask: T | None, kernel: HeightWidth, attributes: DeformConvAttributes, form: str
) -> T:
    """Return the samples at the kernel's points: [N * G, C / G, P * Ho, Wo] in fp32."""
    groups, points = attributes.offset_groups, kernel[0] * kernel[1]
    height, width = o.size(offset, 2), o.size(offset, 3)
    offsets = o.reshape(o.cast(offset, FP32), [-1, points, 2, height, width])
    dy, dx = o.split(offsets, 2)  # [N * G, P, Ho, Wo]
    rows, columns = _kernel_places(kernel, attributes)
    y = dy + o.constant(rows) + _steps(o, offset, 2, attributes)
    x_at = dx + o.constant(columns) + _steps(o, offset, 3, attributes)
    stacked = [-1, points * height, width]  # [N * G, P * Ho, Wo]
    image = o.reshape(x, [-1, x.shape[1] // groups, o.size(x, 2), o.size(x, 3)])
    sampled = bilinear(o, image, o.reshape(x_at, stacked), o.reshape(y, stacked), form)
    if mask is None:
        return sampled
    return sampled * o.reshape(o.cast(mask, FP32), [-1, 1, *stacked[1:]])


def _kernel_places(kernel: HeightWidth, attributes: DeformConvAttributes) -> tuple[np.ndarray, np.ndarray]:
    """Return each kernel point's row and column relative to the window's start, both [P, 1, 1]."""
    rows, columns = np.meshgrid(np.arange(kernel[0]), np.arange(kernel[1]), indexing="ij")
    positions = [
        axis.astype(np.float32).reshape(-1, 1, 1) * dilation - padding
        for axis, dilation, padding in zip((rows, columns), attributes.dilation, attributes.padding, strict=True)
    ]
    return positions[0].astype(np.float32), positions[1].astype(np.float32)


def _steps(o: Ops[T], offset: T, axis: int, attributes: DeformConvAttributes) -> T:
    """Return where the windows start along an axis: [Ho, 1] or [Wo]."""
    steps = o.arange(o.size(offset, axis), FP32) * float(attributes.stride[axis - 2])
    return o.unsqueeze(steps, 1) if axis == 2 else steps


def _convolved(o: Ops[T], columns: T, weight: T, offset: T, groups: int) -> T:
    """Multiply columns [N * G, C / G, P * Ho, Wo] by the kernel -> [N, O, Ho, Wo]."""
    out, inner, kernel_height, kernel_width = weight.shape
    seen = inner * kernel_height * kernel_width
    height, width = o.size(offset, 2), o.size(offset, 3)
    by_group = o.reshape(columns, [-1, groups, seen, height * width])
    kernel = o.reshape(weight, [1, groups, out // groups, seen])
    return o.reshape(o.matmul(kernel, by_group), [-1, out, height, width])
