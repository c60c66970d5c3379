"""Modulated deformable convolution v2 as one kernel, which feeds samples directly to a matrix product."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from trtkit.network.aot import Launch, TritonKernel, pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.arrays import HeightWidth
    from trtkit.dtypes import DType

    from .op import DeformConvAttributes

# Output positions and most output channels per program; input channels per step of its matrix product. Larger blocks
# spill registers; smaller ones sample the same position more often.
_PLACES, _MOST_OUT, _CHANNELS = 32, 128, 16
_LEAST_OUT = 16  # minimum size of a matrix product
SCALARS = ("C", "H", "W", "O", "HO", "WO")


@triton.jit
def _moved(offset_ptr, mask_ptr, at, pixel, has_place, HO, WO, HAS_MASK: tl.constexpr):
    """Return a kernel point's offsets (y, x) and mask at each output position. at: the point's index in the offsets."""
    dy = tl.load(offset_ptr + (at * 2) * HO * WO + pixel, mask=has_place, other=0.0).to(tl.float32)
    dx = tl.load(offset_ptr + (at * 2 + 1) * HO * WO + pixel, mask=has_place, other=0.0).to(tl.float32)
    share = tl.full(pixel.shape, 1.0, tl.float32)
    if HAS_MASK:
        share = tl.load(mask_ptr + at * HO * WO + pixel, mask=has_place, other=0.0).to(tl.float32)
    return dy, dx, share


@triton.jit
def _sampled(x_ptr, base, has_channel, y, x, share, has_place, H, W, PLACES: tl.constexpr, CHANNELS: tl.constexpr):
    """Sample the planes that begin at base [CHANNELS] at PLACES positions, bilinearly, zero outside, times the mask."""
    top, left = tl.floor(y), tl.floor(x)
    part_y, part_x = y - top, x - left
    seen = tl.full((PLACES, CHANNELS), 0.0, tl.float32)
    for corner in tl.static_range(4):
        at_y = top + (corner // 2)
        at_x = left + (corner % 2)
        weight_y = part_y if corner // 2 else 1.0 - part_y
        weight_x = part_x if corner % 2 else 1.0 - part_x
        inside = (at_y >= 0.0) & (at_y < H) & (at_x >= 0.0) & (at_x < W) & has_place
        index = tl.where(inside, at_y * W + at_x, 0.0).to(tl.int32)
        mask = inside[:, None] & has_channel[None, :]
        picked = tl.load(x_ptr + (base[None, :] + index[:, None]), mask=mask, other=0.0)
        seen += picked.to(tl.float32) * (weight_y * weight_x * share)[:, None]
    return seen


@triton.jit
def _store(y_ptr, bias_ptr, total, at, has_place, has_out, O, AREA, HAS_BIAS: tl.constexpr):
    """Add the bias and write a program's results. at: image, output positions, output channels."""
    image, pixel, channel = at
    if HAS_BIAS:
        total += tl.load(bias_ptr + channel, mask=has_out, other=0.0).to(tl.float32)[None, :]
    y_at = (image * O + channel[None, :]) * AREA + pixel[:, None]
    tl.store(y_ptr + y_at, total.to(y_ptr.dtype.element_ty), mask=has_place[:, None] & has_out[None, :])


@triton.jit
def deform_conv(
    x_ptr, weight_ptr, offset_ptr, bias_ptr, mask_ptr, C, H, W, O, HO, WO, y_ptr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, GROUPS: tl.constexpr, OFFSET_GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    PLACES: tl.constexpr, OUT: tl.constexpr, CHANNELS: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    """Compute OUT output channels of one group at PLACES output positions.

    Channels are processed in segments within one convolution group and one offset group.
    """
    image, inner, group_out = tl.program_id(1), C // GROUPS, O // GROUPS
    blocks = (group_out + OUT - 1) // OUT
    group = tl.program_id(2) // blocks
    out = (tl.program_id(2) % blocks) * OUT + tl.arange(0, OUT)
    pixel = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    has_place = pixel < HO * WO
    row, column = pixel // WO, pixel % WO
    total = tl.full((PLACES, OUT), 0.0, tl.float32)
    for point in range(KH * KW):
        first_y = row * SH - PH + (point // KW) * DH
        first_x = column * SW - PW + (point % KW) * DW
        for segment in range(0, inner, SEGMENT):
            offset_group = (group * inner + segment) // (C // OFFSET_GROUPS)
            at = (image * OFFSET_GROUPS + offset_group) * (KH * KW) + point
            dy, dx, share = _moved(offset_ptr, mask_ptr, at, pixel, has_place, HO, WO, HAS_MASK)
            y, x = first_y + dy, first_x + dx
            for start in range(0, SEGMENT, CHANNELS):
                channel = start + tl.arange(0, CHANNELS)
                has_channel = channel < SEGMENT
                base = (image * C + group * inner + segment + channel) * H * W
                seen = _sampled(x_ptr, base, has_channel, y, x, share, has_place, H, W, PLACES, CHANNELS)
                row_at = (group * group_out + out[None, :]) * inner + segment + channel[:, None]
                has_weight = has_channel[:, None] & (out < group_out)[None, :]
                kernel = tl.load(weight_ptr + (row_at * (KH * KW) + point), mask=has_weight, other=0.0)
                total = tl.dot(seen.to(kernel.dtype), kernel, total, input_precision="ieee")
    channel = group * group_out + out
    _store(y_ptr, bias_ptr, total, (image, pixel, channel), has_place, out < group_out, O, HO * WO, HAS_BIAS)


def plan(
    shapes: Sequence[Sequence[Any] | None], attributes: DeformConvAttributes, cdiv: Callable[[Any, int], Any]
) -> Launch:
    """Return the launch parameters. shapes: of the inputs; all but the weight's may be TensorRT symbols."""
    x, weight, offset, bias, mask = shapes
    assert x is not None
    assert weight is not None
    assert offset is not None
    groups = attributes.groups
    channels, out = int(weight[1]) * groups, int(weight[0])
    scalars = dict(zip(SCALARS, (channels, x[2], x[3], out, offset[2], offset[3]), strict=True))
    constants = _constants((int(weight[2]), int(weight[3])), channels, attributes)
    out_block = min(max(triton.next_power_of_2(out // groups), _LEAST_OUT), _MOST_OUT)
    blocks = groups * triton.cdiv(out // groups, out_block)
    constants |= {"OUT": out_block, "HAS_BIAS": bias is not None, "HAS_MASK": mask is not None}
    return Launch((cdiv(offset[2] * offset[3], _PLACES), x[0], blocks), scalars, constants)


def _constants(kernel: HeightWidth, channels: int, attributes: DeformConvAttributes) -> dict[str, Any]:
    names = ("KH", "KW", "SH", "SW", "PH", "PW", "DH", "DW")
    values = (*kernel, *attributes.stride, *attributes.padding, *attributes.dilation)
    return {
        **dict(zip(names, values, strict=True)),
        "GROUPS": attributes.groups,
        "OFFSET_GROUPS": attributes.offset_groups,
        "PLACES": _PLACES,
        "CHANNELS": _CHANNELS,
        "SEGMENT": gcd(channels // attributes.groups, channels // attributes.offset_groups),
    }


def launch(inputs: Sequence[torch.Tensor | None], attributes: DeformConvAttributes) -> list[torch.Tensor]:
    """Run the kernel on tensors; the output is NaN wherever it writes nothing."""
    x, weight, offset, bias, mask = inputs
    assert x is not None
    assert weight is not None
    assert offset is not None
    started = plan([None if t is None else t.shape for t in inputs], attributes, triton.cdiv)
    y = torch.full((x.shape[0], weight.shape[0], *offset.shape[2:]), torch.nan, dtype=x.dtype, device=x.device)
    pointers = (x, weight, offset, x if bias is None else bias, x if mask is None else mask)
    deform_conv[started.grid](*pointers, *started.scalars.values(), y, **started.constants, num_warps=started.num_warps)
    return [y]


def to_compile(dtype: DType, started: Launch) -> TritonKernel:
    """Return the kernel and the types of its arguments."""
    data = pointer(dtype)
    inputs = dict.fromkeys(("x_ptr", "weight_ptr", "offset_ptr", "bias_ptr", "mask_ptr"), data)
    signature = {**inputs, **dict.fromkeys(SCALARS, "i32"), "y_ptr": data}
    constants = dict.fromkeys(started.constants, "constexpr")
    return TritonKernel(deform_conv, signature | constants, started.constants, started.num_warps)
