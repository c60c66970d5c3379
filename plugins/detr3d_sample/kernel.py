"""DETR3D feature sampling as one kernel: projection, visibility, sampling and sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from trtkit.errors import NetworkError
from trtkit.network.aot import Launch, TritonKernel, pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.dtypes import DType

    from .op import Detr3dSampleAttributes

MOST_LEVELS = 4
"""The kernel's number of feature inputs; with fewer levels, the rest is not read."""
_CHANNELS = 256
SCALARS = ("N", "Q", "C", *(f"{name}{level}" for level in range(MOST_LEVELS) for name in "HW"))
_FEATURES = tuple(f"feature{level}_ptr" for level in range(MOST_LEVELS))


@triton.jit
def _along(row_ptr, x, y, z):
    """Return the product of a row of four numbers with a point (x, y, z, 1)."""
    return tl.load(row_ptr) * x + tl.load(row_ptr + 1) * y + tl.load(row_ptr + 2) * z + tl.load(row_ptr + 3)


@triton.jit
def _seen(matrix_ptr, x, y, z, IMAGE_H: tl.constexpr, IMAGE_W: tl.constexpr):
    """Return a point's position in a camera's image, (u, v) in [-1, 1], and whether it is visible: 1.0 or 0.0."""
    depth = _along(matrix_ptr + 8, x, y, z)
    divisor = tl.where(depth > 1e-5, depth, 1e-5)
    u = _along(matrix_ptr, x, y, z) / divisor * (2.0 / IMAGE_W) - 1.0
    v = _along(matrix_ptr + 4, x, y, z) / divisor * (2.0 / IMAGE_H) - 1.0
    # Separate `where`s: the interpreter turns combined comparisons into integers.
    is_ahead = tl.where(depth > 1e-5, 1.0, 0.0)
    is_across = tl.where(tl.abs(u) < 1.0, 1.0, 0.0)
    is_down = tl.where(tl.abs(v) < 1.0, 1.0, 0.0)
    return u, v, is_ahead * is_across * is_down


@triton.jit
def _sampled(planes_ptr, has_channel, u, v, height, width, CHANNELS: tl.constexpr):
    """Sample planes [CHANNELS] bilinearly at one position, zero outside."""
    x, y = ((u + 1.0) * width - 1.0) * 0.5, ((v + 1.0) * height - 1.0) * 0.5
    left, top = tl.floor(x), tl.floor(y)
    part_x, part_y = x - left, y - top
    total = tl.full((CHANNELS,), 0.0, tl.float32)
    for corner in tl.static_range(4):
        at_y = (top + (corner // 2)).to(tl.int32)
        at_x = (left + (corner % 2)).to(tl.int32)
        weight_y = part_y if corner // 2 else 1.0 - part_y
        weight_x = part_x if corner % 2 else 1.0 - part_x
        row_inside = tl.where(at_y >= 0, tl.where(at_y < height, 1, 0), 0)
        inside = tl.where(at_x >= 0, tl.where(at_x < width, row_inside, 0), 0)
        index = tl.where(inside > 0, at_y * width + at_x, 0)
        picked = tl.load(planes_ptr + index, mask=has_channel, other=0.0).to(tl.float32)
        total += picked * (weight_y * weight_x * inside)
    return total


@triton.jit
def detr3d_sample(
    points_ptr, matrices_ptr, weights_ptr, feature0_ptr, feature1_ptr, feature2_ptr, feature3_ptr,
    N, Q, C, H0, W0, H1, W1, H2, W2, H3, W3, y_ptr,
    IMAGE_H: tl.constexpr, IMAGE_W: tl.constexpr, X0: tl.constexpr, Y0: tl.constexpr, Z0: tl.constexpr,
    X1: tl.constexpr, Y1: tl.constexpr, Z1: tl.constexpr, LEVELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sum the features that all cameras see at one point, CHANNELS channels at a time, in fp32."""
    features, heights = (feature0_ptr, feature1_ptr, feature2_ptr, feature3_ptr), (H0, H1, H2, H3)
    widths = (W0, W1, W2, W3)
    query, batch = tl.program_id(0), tl.program_id(2)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    has_channel = channel < C
    point = points_ptr + (batch * Q + query) * 3
    x = tl.load(point).to(tl.float32) * (X1 - X0) + X0
    y = tl.load(point + 1).to(tl.float32) * (Y1 - Y0) + Y0
    z = tl.load(point + 2).to(tl.float32) * (Z1 - Z0) + Z0
    total = tl.full((CHANNELS,), 0.0, tl.float32)
    for camera in range(N):
        u, v, is_seen = _seen(matrices_ptr + (batch * N + camera) * 16, x, y, z, IMAGE_H, IMAGE_W)
        if is_seen > 0.0:
            for level in tl.static_range(LEVELS):
                height, width = heights[level], widths[level]
                share = tl.load(weights_ptr + ((batch * Q + query) * N + camera) * LEVELS + level).to(tl.float32)
                planes = features[level] + ((batch * N + camera) * C + channel) * height * width
                total += _sampled(planes, has_channel, u, v, height, width, CHANNELS) * share
    y_at = (batch * Q + query) * C + channel
    tl.store(y_ptr + y_at, total.to(y_ptr.dtype.element_ty), mask=has_channel)


def plan(
    shapes: Sequence[Sequence[Any]], attributes: Detr3dSampleAttributes, cdiv: Callable[[Any, int], Any]
) -> Launch:
    """Return the launch parameters. shapes: of the inputs; all but N and C may be TensorRT symbols.

    Raises NetworkError for more levels than the kernel has inputs.
    """
    points, matrices, _, *features = shapes
    if len(features) > MOST_LEVELS:
        raise NetworkError(f"{len(features)} feature levels, the kernel takes {MOST_LEVELS}", "Detr3dSample")
    channels = int(features[0][2])
    sizes = [size for feature in (*features, *[features[0]] * (MOST_LEVELS - len(features))) for size in feature[3:]]
    scalars = dict(zip(SCALARS, (int(matrices[1]), points[1], channels, *sizes), strict=True))
    block = min(triton.next_power_of_2(channels), _CHANNELS)
    limits = dict(zip(("X0", "Y0", "Z0", "X1", "Y1", "Z1"), map(float, attributes.pc_range), strict=True))
    image = {"IMAGE_H": float(attributes.image_height), "IMAGE_W": float(attributes.image_width)}
    constants = {**image, **limits, "LEVELS": len(features), "CHANNELS": block}
    return Launch((points[1], cdiv(channels, block), points[0]), scalars, constants)


def launch(inputs: Sequence[torch.Tensor | None], attributes: Detr3dSampleAttributes) -> list[torch.Tensor]:
    """Run the kernel on tensors; the output is NaN wherever it writes nothing."""
    points, matrices, weights, *features = [x for x in inputs if x is not None]
    started = plan([x.shape for x in (points, matrices, weights, *features)], attributes, triton.cdiv)
    shape = (*points.shape[:2], features[0].shape[2])
    y = torch.full(shape, torch.nan, dtype=features[0].dtype, device=points.device)
    levels = [*features, *[features[0]] * (MOST_LEVELS - len(features))]
    detr3d_sample[started.grid](
        points, matrices, weights, *levels, *started.scalars.values(), y, **started.constants,
        num_warps=started.num_warps,
    )  # fmt: skip
    return [y]


def to_compile(dtype: DType, started: Launch) -> TritonKernel:
    """Return the kernel and the types of its arguments; points and matrices are fp32."""
    data = pointer(dtype)
    inputs = {"points_ptr": "*fp32", "matrices_ptr": "*fp32", "weights_ptr": data, **dict.fromkeys(_FEATURES, data)}
    signature = {**inputs, **dict.fromkeys(SCALARS, "i32"), "y_ptr": data}
    constants = dict.fromkeys(started.constants, "constexpr")
    return TritonKernel(detr3d_sample, signature | constants, started.constants, started.num_warps)
