"""RoI align as one kernel: each program computes some channels of some bins of one box."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from trtkit.network.aot import Launch, TritonKernel, pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.dtypes import DType

    from .op import RoiAlignAttributes

# Channels per program; most and fewest bins per program.
_CHANNELS, _MOST_BINS, _LEAST_BINS = 16, 64, 16
MODES = ("avg", "max", "max_corner")
SCALARS = ("B", "C", "H", "W")


@triton.jit
def _start(low, SCALE: tl.constexpr, IS_ALIGNED: tl.constexpr):
    """Return where a box begins along an axis, in pixels of the feature map."""
    return low * SCALE - 0.5 if IS_ALIGNED else low * SCALE


@triton.jit
def _bin_size(low, high, SCALE: tl.constexpr, IS_ALIGNED: tl.constexpr, BINS: tl.constexpr):
    """Return a bin's size along an axis, in pixels."""
    length = high * SCALE - low * SCALE
    if not IS_ALIGNED:
        length = tl.maximum(length, 1.0)
    return tl.div_rn(length, length * 0.0 + BINS)


@triton.jit
def _samples(size, pixels, BINS: tl.constexpr, RATIO: tl.constexpr):
    """Return how many samples a bin has along an axis."""
    if RATIO > 0:
        count = pixels * 0 + RATIO
    else:
        most = (pixels + BINS - 1) // BINS
        count = tl.minimum(tl.maximum((-tl.floor(-size)).to(tl.int32), 1), most)
    return count


@triton.jit
def _sampled(image_ptr, y, x, H, W, mask, MODE: tl.constexpr):
    """Sample an image bilinearly at [bins] -> [channels, bins]; positions more than a pixel outside give zero."""
    is_seen = (y >= -1.0) & (y <= H) & (x >= -1.0) & (x <= W)
    y = tl.minimum(tl.maximum(y, 0.0), H - 1.0)
    x = tl.minimum(tl.maximum(x, 0.0), W - 1.0)
    top, left = tl.floor(y), tl.floor(x)
    part_y, part_x = y - top, x - left
    mask = mask & is_seen[None, :]
    for corner in tl.static_range(4):
        at_y = tl.minimum(top + (corner // 2), H - 1.0)
        at_x = tl.minimum(left + (corner % 2), W - 1.0)
        weight_y = part_y if corner // 2 else 1.0 - part_y
        weight_x = part_x if corner % 2 else 1.0 - part_x
        picked = tl.load(image_ptr + (at_y * W + at_x).to(tl.int32)[None, :], mask=mask, other=0.0)
        part = picked.to(tl.float32) * (weight_y * weight_x)[None, :]
        if corner == 0:
            result = part
        else:
            result = tl.maximum(result, part) if MODE == 2 else result + part
    return result


@triton.jit
def roi_align(
    x_ptr, rois_ptr, images_ptr, B, C, H, W, y_ptr,
    HO: tl.constexpr, WO: tl.constexpr, RATIO: tl.constexpr, SCALE: tl.constexpr, IS_ALIGNED: tl.constexpr,
    MODE: tl.constexpr, HAS_IMAGES: tl.constexpr, BINS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute CHANNELS channels of BINS bins of one box; positions are in fp32. MODE: index into MODES."""
    roi = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    cell = tl.program_id(2) * BINS + tl.arange(0, BINS)
    mask = (channel < C)[:, None] & (cell < HO * WO)[None, :]
    box = rois_ptr + roi * 4 if HAS_IMAGES else rois_ptr + roi * 5 + 1
    image = tl.load(images_ptr + roi).to(tl.int32) if HAS_IMAGES else tl.load(box - 1).to(tl.int32)
    x1, y1 = tl.load(box).to(tl.float32), tl.load(box + 1).to(tl.float32)
    x2, y2 = tl.load(box + 2).to(tl.float32), tl.load(box + 3).to(tl.float32)
    high, wide = _bin_size(y1, y2, SCALE, IS_ALIGNED, HO), _bin_size(x1, x2, SCALE, IS_ALIGNED, WO)
    rows, columns = _samples(high, H, HO, RATIO), _samples(wide, W, WO, RATIO)
    top = _start(y1, SCALE, IS_ALIGNED) + (cell // WO) * high
    left = _start(x1, SCALE, IS_ALIGNED) + (cell % WO) * wide
    has_image = tl.where(image >= 0, tl.where(image < B, 1, 0), 0)  # NMS pads rows with image -1
    planes = x_ptr + (image * C + channel)[:, None] * H * W
    is_read = mask & (channel < C * has_image)[:, None]
    total = tl.full((CHANNELS, BINS), 0.0 if MODE == 0 else float("-inf"), tl.float32)
    for row in range(rows):
        for column in range(columns):
            y, x = top + (row + 0.5) * high / rows, left + (column + 0.5) * wide / columns
            sample = _sampled(planes, y, x, H, W, is_read, MODE)
            total = total + sample if MODE == 0 else tl.maximum(total, sample)
    if MODE == 0:
        total = total / (rows * columns)
    y_at = (roi * C + channel)[:, None] * (HO * WO) + cell[None, :]
    tl.store(y_ptr + y_at, total.to(y_ptr.dtype.element_ty), mask=mask)


def plan(
    shapes: Sequence[Sequence[Any] | None], attributes: RoiAlignAttributes, cdiv: Callable[[Any, int], Any]
) -> Launch:
    """Return the launch parameters. shapes: of the inputs; sizes may be TensorRT symbols."""
    x, rois, images = shapes
    assert x is not None
    assert rois is not None
    height, width = attributes.output_size
    bins = min(max(triton.next_power_of_2(height * width), _LEAST_BINS), _MOST_BINS)
    constants = {
        "HO": height,
        "WO": width,
        "RATIO": attributes.sampling_ratio,
        "SCALE": attributes.spatial_scale,
        "IS_ALIGNED": attributes.is_aligned,
        "MODE": MODES.index(attributes.mode),
        "HAS_IMAGES": images is not None,
        "BINS": bins,
        "CHANNELS": _CHANNELS,
    }
    grid = (rois[0], cdiv(x[1], _CHANNELS), triton.cdiv(height * width, bins))
    return Launch(grid, dict(zip(SCALARS, x, strict=True)), constants)


def launch(inputs: Sequence[torch.Tensor | None], attributes: RoiAlignAttributes) -> list[torch.Tensor]:
    """Run the kernel on tensors; the output is NaN wherever it writes nothing."""
    x, rois, images = inputs
    assert x is not None
    assert rois is not None
    started = plan([None if t is None else t.shape for t in inputs], attributes, triton.cdiv)
    shape = (rois.shape[0], x.shape[1], *attributes.output_size)
    y = torch.full(shape, torch.nan, dtype=x.dtype, device=x.device)
    pointers = (x, rois, rois if images is None else images)
    roi_align[started.grid](*pointers, *started.scalars.values(), y, **started.constants, num_warps=started.num_warps)
    return [y]


def to_compile(dtype: DType, started: Launch) -> TritonKernel:
    """Return the kernel and the types of its arguments; boxes are fp32, image numbers int64."""
    data = pointer(dtype)
    inputs = {"x_ptr": data, "rois_ptr": "*fp32", "images_ptr": "*i64"}
    signature = {**inputs, **dict.fromkeys(SCALARS, "i32"), "y_ptr": data}
    constants = dict.fromkeys(started.constants, "constexpr")
    return TritonKernel(roi_align, signature | constants, started.constants, started.num_warps)
