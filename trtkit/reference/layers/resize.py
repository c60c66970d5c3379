"""Resize and grid sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Op, Tensor, sizes

Weights = tuple[Tensor, Tensor]
"""Positions [out, taps] and their weights [out, taps] along one axis."""


@dataclass(frozen=True)
class CoordinateRule:
    """How an output position maps to input positions. Names: IResizeLayer in NvInfer.h."""

    mode: str
    transformation: str
    selector: str
    rounding: str
    excludes_outside: bool
    cubic_coefficient: float


def resize(layer: Layer) -> Op:
    """Resize any axes to given sizes, or by scales: floor(size * scale).

    Where scales are given, positions are mapped with them, not with the ratio of the sizes (as in ONNX).
    """
    rule = CoordinateRule(
        layer.option("resize_mode"),
        layer.option("coordinate_transformation"),
        layer.option("selector_for_single_pixel"),
        layer.option("nearest_rounding"),
        layer.flag("exclude_outside"),
        layer.real("cubic_coeff"),
    )
    scales = list(layer.reals("scales"))
    stated = None if layer.has_input(1) or scales else layer.ints("shape")
    dtype = layer.input_dtype()

    def run(x: Tensor, shape: Tensor | None = None) -> Tensor:
        wanted = list(stated) if stated is not None else sizes(shape) if shape is not None else []
        wanted = wanted or [int(size * scale + 1e-6) for size, scale in zip(x.shape, scales, strict=True)]
        fast = _by_torch(x, wanted, scales, rule)
        if fast is not None:
            return fast
        y = x.float() if dtype.itemsize < 4 and rule.mode != "NEAREST" else x
        for axis, size in enumerate(wanted):
            scale = scales[axis] if scales else size / max(x.shape[axis], 1)
            if size != x.shape[axis] or scale != 1:
                y = _resize_axis(y, axis, size, rule, scale)
        return y.to(dtype)

    return run


def _by_torch(x: Tensor, wanted: list[int], scales: list[float], rule: CoordinateRule) -> Tensor | None:
    """Return torch's own bilinear or nearest resize where it computes the same, else None."""
    if x.dim() != 4 or wanted[:2] != list(x.shape[:2]) or not x.is_floating_point() or x.dtype.itemsize < 4:
        return None
    if scales and any(scale != size / old for scale, size, old in zip(scales, wanted, x.shape, strict=True)):
        return None
    upscales = all(size % old == 0 for size, old in zip(wanted[2:], x.shape[2:], strict=True))
    if rule.mode == "NEAREST" and upscales and rule.transformation == "ASYMMETRIC" and rule.rounding == "FLOOR":
        return F.interpolate(x, wanted[2:], mode="nearest")
    if (
        rule.mode != "LINEAR"
        or rule.selector != "FORMULA"
        or rule.excludes_outside
        or rule.transformation == "ASYMMETRIC"
    ):
        return None
    aligned = rule.transformation == "ALIGN_CORNERS"
    if aligned and min(wanted[2:]) < 2:
        return None
    return F.interpolate(x, wanted[2:], mode="bilinear", align_corners=aligned)


def _resize_axis(x: Tensor, axis: int, size: int, rule: CoordinateRule, scale: float) -> Tensor:
    """Return x with one axis resized: each mode is a product of one-dimensional ones."""
    position = _source(torch.arange(size, dtype=torch.float64, device=x.device), x.shape[axis], rule, scale)
    if rule.mode == "NEAREST":
        return x.index_select(axis, _nearest(position, rule.rounding).clamp(0, x.shape[axis] - 1))
    index, weight = _taps(position, x.shape[axis], rule)
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    for tap in range(index.shape[1]):
        factor = weight[:, tap].to(x.dtype).reshape(-1, *[1] * (x.dim() - axis - 1))
        total = total + x.index_select(axis, index[:, tap]) * factor
    return total


def _source(out: Tensor, length: int, rule: CoordinateRule, scale: float) -> Tensor:
    """Return the input position of each output position, in fp64."""
    size = len(out)
    if size == 1 and rule.selector == "UPPER":
        return torch.zeros_like(out)
    if rule.transformation == "ALIGN_CORNERS":
        return out * ((length - 1) / (size - 1)) if size > 1 else torch.zeros_like(out)
    if rule.transformation == "ASYMMETRIC":
        return out / scale
    return (out + 0.5) / scale - 0.5


def _nearest(position: Tensor, rounding: str) -> Tensor:
    """Return whole positions by TensorRT's ResizeRoundMode."""
    if rounding == "HALF_UP":
        rounded = torch.floor(position + 0.5)
    elif rounding == "HALF_DOWN":
        rounded = torch.ceil(position - 0.5)
    else:
        rounded = torch.floor(position) if rounding == "FLOOR" else torch.ceil(position)
    return rounded.long()


def _taps(position: Tensor, length: int, rule: CoordinateRule) -> Weights:
    """Return the input positions that make up each output, and their weights."""
    low = torch.floor(position)
    if rule.mode == "LINEAR":
        offsets = torch.tensor([0, 1], device=position.device)
        part = position - low
        weight = torch.stack((1 - part, part), 1)
    else:
        offsets = torch.tensor([-1, 0, 1, 2], device=position.device)
        weight = _cubic(position - low, rule.cubic_coefficient)
    index = low.long().unsqueeze(1) + offsets
    if rule.excludes_outside:
        weight = weight * ((index >= 0) & (index < length))
        weight = weight / weight.sum(1, keepdim=True)
    return index.clamp(0, length - 1), weight


def _cubic(part: Tensor, a: float) -> Tensor:
    """Return the weights of four neighbours (Keys 1981, coefficient a)."""
    far, near, next_near, next_far = part + 1, part, 1 - part, 2 - part
    inner = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (near, next_near)]
    outer = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (far, next_far)]
    return torch.stack((outer[0], inner[0], inner[1], outer[1]), 1)


_GRID_MODES = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}
_GRID_PADDING = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}


def grid_sample(layer: Layer) -> Op:
    """Sample [N, C, ...] at the positions of a grid in [-1, 1], last axis x first."""
    mode = _GRID_MODES[layer.option("interpolation_mode")]
    padding = _GRID_PADDING[layer.option("sample_mode")]
    aligned, dtype = layer.flag("align_corners"), layer.input_dtype()

    def run(x: Tensor, grid: Tensor) -> Tensor:
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        return F.grid_sample(x.to(wide), grid.to(wide), mode, padding, aligned).to(dtype)

    return run
