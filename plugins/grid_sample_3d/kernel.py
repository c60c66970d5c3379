"""GridSample of volumes as one kernel: each program samples some channels at some positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from trtkit.network.aot import Launch, TritonKernel, pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.dtypes import DType

    from .op import GridSample3dAttributes

# Positions per program, and channels that it samples one after another.
_PLACES, _CHANNELS = 128, 8
SCALARS = ("C", "D", "H", "W", "PLACES")


@triton.jit
def _place(part, size, IS_NEAREST: tl.constexpr, PADDING: tl.constexpr, ALIGNED: tl.constexpr):
    """Return where to sample along an axis, in elements. PADDING: 0 zeros, 1 border, 2 reflection."""
    last = size - 1.0
    if ALIGNED:
        position = (part + 1.0) * last * 0.5
    else:
        position = ((part + 1.0) * size - 1.0) * 0.5
    if PADDING == 2:
        first = 0.0 if ALIGNED else -0.5
        span = tl.where(last > 1.0, last, 1.0) if ALIGNED else size
        away = tl.abs(position - first)
        flips = tl.floor(away / span)
        rest = away - flips * span
        is_odd = flips - tl.floor(flips * 0.5) * 2.0
        position = rest + is_odd * (span - rest * 2.0) + first
    if PADDING > 0:
        position = tl.where(position > 0.0, tl.where(position < last, position, last), 0.0)
    else:
        position = tl.where(position > -1.0, tl.where(position < size, position, size), -1.0)
    if IS_NEAREST:
        # Ties round to even, as in torch and ONNX.
        up = tl.floor(position + 0.5)
        is_tie_to_odd = (up - position == 0.5) & (up - tl.floor(up * 0.5) * 2.0 == 1.0)
        position = tl.where(is_tie_to_odd, up - 1.0, up)
    return position


@triton.jit
def grid_sample_3d(
    x_ptr, grid_ptr, C, D, H, W, PLACES, y_ptr,
    IS_NEAREST: tl.constexpr, PADDING: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sample CHANNELS channels of one volume at BLOCK positions; coordinates are in fp32."""
    image = tl.program_id(2)
    point = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    has_place = point < PLACES
    at = grid_ptr + (image * PLACES + point) * 3
    x = _place(tl.load(at, mask=has_place, other=0.0).to(tl.float32), W * 1.0, IS_NEAREST, PADDING, ALIGNED)
    y = _place(tl.load(at + 1, mask=has_place, other=0.0).to(tl.float32), H * 1.0, IS_NEAREST, PADDING, ALIGNED)
    z = _place(tl.load(at + 2, mask=has_place, other=0.0).to(tl.float32), D * 1.0, IS_NEAREST, PADDING, ALIGNED)
    left, top, near = tl.floor(x), tl.floor(y), tl.floor(z)
    part_x, part_y, part_z = x - left, y - top, z - near
    for step in range(CHANNELS):
        channel = tl.program_id(1) * CHANNELS + step
        base = (image * C + channel) * D * H * W
        total = tl.full((BLOCK,), 0.0, tl.float32)
        for corner in tl.static_range(8):
            at_z = (near + (corner // 4)).to(tl.int32)
            at_y = (top + (corner // 2 % 2)).to(tl.int32)
            at_x = (left + (corner % 2)).to(tl.int32)
            weight_z = part_z if corner // 4 else 1.0 - part_z
            weight_y = part_y if corner // 2 % 2 else 1.0 - part_y
            weight_x = part_x if corner % 2 else 1.0 - part_x
            inside = (at_z >= 0) & (at_z < D) & (at_y >= 0) & (at_y < H) & (at_x >= 0) & (at_x < W)
            has_value = inside & has_place & (channel + at_x * 0 < C)
            picked = tl.load(x_ptr + (base + (at_z * H + at_y) * W + at_x), mask=has_value, other=0.0)
            total += picked.to(tl.float32) * (weight_z * weight_y * weight_x)
        y_at = (image * C + channel) * PLACES + point
        has_output = has_place & (channel + point * 0 < C)
        tl.store(y_ptr + y_at, total.to(y_ptr.dtype.element_ty), mask=has_output)


def plan(
    shapes: Sequence[Sequence[Any]], attributes: GridSample3dAttributes, cdiv: Callable[[Any, int], Any]
) -> Launch:
    """Return the launch parameters. shapes: of the inputs; sizes may be TensorRT symbols."""
    x, grid = shapes
    points = grid[1] * grid[2] * grid[3]
    scalars = dict(zip(SCALARS, (*x[1:5], points), strict=True))
    constants = {
        "IS_NEAREST": attributes.mode == "nearest",
        "PADDING": ("zeros", "border", "reflection").index(attributes.padding),
        "ALIGNED": attributes.align_corners,
        "BLOCK": _PLACES,
        "CHANNELS": _CHANNELS,
    }
    return Launch((cdiv(points, _PLACES), cdiv(x[1], _CHANNELS), x[0]), scalars, constants)


def launch(inputs: Sequence[torch.Tensor | None], attributes: GridSample3dAttributes) -> list[torch.Tensor]:
    """Run the kernel on tensors; the output is NaN wherever it writes nothing."""
    x, grid = inputs
    assert x is not None
    assert grid is not None
    started = plan([x.shape, grid.shape], attributes, triton.cdiv)
    y = torch.full((*x.shape[:2], *grid.shape[1:4]), torch.nan, dtype=x.dtype, device=x.device)
    grid_sample_3d[started.grid](
        x, grid, *started.scalars.values(), y, **started.constants, num_warps=started.num_warps
    )
    return [y]


def to_compile(dtype: DType, started: Launch) -> TritonKernel:
    """Return the kernel and the types of its arguments; the grid is fp32."""
    data = pointer(dtype)
    signature = {"x_ptr": data, "grid_ptr": "*fp32", **dict.fromkeys(SCALARS, "i32"), "y_ptr": data}
    constants = dict.fromkeys(started.constants, "constexpr")
    return TritonKernel(grid_sample_3d, signature | constants, started.constants, started.num_warps)
