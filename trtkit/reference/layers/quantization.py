"""Quantize, dequantize and dynamic quantize: int8, int4, fp8, fp4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.reference.layer import Layer, Op, Tensor

# Formulas: https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-schemes.html
FP8_MAX, FP4_MAX = 448.0, 6.0
_TINY = 2.0**-127


def quantize(layer: Layer) -> Op:
    """Divide by the scale, round to the nearest value of the output type (ties to even), saturate.

    The scale is a single number, one per index of the layer's axis, or one per block. Inputs: data, scale, zero point.
    """
    axis = layer.number("axis")
    rounding = _ROUNDINGS[layer.outputs[0].dtype.name]
    target = layer.output_dtype()

    def run(x: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        ratio = wide / spread_scale(scale, x.shape, axis)
        if zero_point is not None:
            whole = ratio if target.is_floating_point else torch.round(ratio)
            ratio = whole + spread_scale(zero_point, x.shape, axis)
        return rounding(ratio).to(target)

    return run


def dequantize(layer: Layer) -> Op:
    """Multiply by the scale, in at least fp32, and round to the output type. Inputs: data, scale, zero point."""
    axis, target = layer.number("axis"), layer.output_dtype()

    def run(x: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
        return dequantized(x, scale, zero_point, axis, target)

    return run


def dequantized(x: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int, target: torch.dtype) -> Tensor:
    """Return codes times their scale, computed in at least fp32 and rounded to the target type."""
    wide = torch.float64 if target == torch.float64 else torch.float32
    factor = spread_scale(scale, x.shape, axis).to(wide)
    value = x.to(wide)
    if zero_point is not None:
        value = value - spread_scale(zero_point, x.shape, axis)
    return (value * factor).to(target)


def spread_scale(scale: Tensor, shape: torch.Size, axis: int) -> Tensor:
    """Return the scale, in at least fp32, in a form that broadcasts to `shape`.

    A scale of the data's rank has one number per block: the block size is the ratio of the sizes.
    """
    wide = scale if scale.dtype == torch.float64 else scale.float()
    if scale.numel() == 1:
        return wide.reshape(())
    if scale.dim() == 1 and len(shape) != 1:
        return wide.reshape(-1, *[1] * (len(shape) - axis % len(shape) - 1))
    for dim, (have, want) in enumerate(zip(scale.shape, shape, strict=True)):
        if have not in (1, want):
            wide = wide.repeat_interleave(want // have, dim)
    return wide


def round_fp4(x: Tensor) -> Tensor:
    """Return the nearest e2m1 values: multiples of 0.5 up to 2, of 1 up to 4, of 2 up to 6; ties to even.

    NaN, which e2m1 lacks, becomes 6 (PTX ISA, `cvt` to e2m1x2).
    """
    x = x.nan_to_num(FP4_MAX, FP4_MAX, -FP4_MAX)
    size = x.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0)).to(x.dtype)
    return (torch.round(size / step) * step).clamp(max=FP4_MAX).copysign(x)


_ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "int8": lambda x: torch.round(x).clamp(-128, 127),
    "int4": lambda x: torch.round(x).clamp(-8, 7),
    "fp8": lambda x: x.clamp(-FP8_MAX, FP8_MAX),
    "fp4": round_fp4,
}


def dynamic_quantize(layer: Layer) -> Op:
    """Quantize each block with a scale computed from its largest magnitude; return data and scales.

    NVFP4: scale = fp8(amax / 6 / double-quantization scale). MXFP8: scale = the power of two at or above amax / 448
    (https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/BlockScaling.html). Inputs: data, the
    double-quantization scale.
    """
    blocks = _block_shape(layer)
    target, scale_type = layer.output_dtype(0), layer.output_dtype(1)
    is_fp4 = layer.outputs[0].dtype.name == "fp4"

    def run(x: Tensor, double_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        wide = x.float()
        peak = _block_peak(wide, blocks)
        outer = 1.0 if double_scale is None else double_scale.float().reshape(())
        if is_fp4:
            scales = (peak / FP4_MAX / outer).clamp(max=FP8_MAX).to(scale_type)
        else:
            exponent = torch.ceil(torch.log2((peak / FP8_MAX).clamp(min=_TINY)))
            scales = torch.exp2(exponent.clamp(-127, 127)).to(scale_type)
        factor = spread_scale(scales.float() * outer, x.shape, -1)
        ratio = torch.where(factor == 0, torch.zeros_like(wide), wide / factor)
        rounding = round_fp4 if is_fp4 else _ROUNDINGS["fp8"]
        return rounding(ratio).to(target), scales

    return run


def _block_shape(layer: Layer) -> tuple[int, ...]:
    """Return the size of a block along each axis."""
    rank = len(layer.input_shape(0))
    axis, size = layer.number("axis"), layer.number("block_size")
    if size > 0:
        return tuple(size if index == axis % rank else 1 for index in range(rank))
    shape = layer.ints("block_shape")
    assert shape is not None
    return shape


def _block_peak(x: Tensor, blocks: tuple[int, ...]) -> Tensor:
    """Return the largest magnitude of each block; blocks divide the sizes."""
    for axis, size in enumerate(blocks):
        if size == -1:
            x = x.abs().amax(axis, keepdim=True)
        elif size > 1:
            x = x.abs().reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]).amax(axis + 1)
    return x.abs()
