"""Slice, in every sample mode."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Lowered, Tensor, sizes

START, SIZE, STRIDE, FILL, AXES = 1, 2, 3, 4, 5
"""Input numbers of ISliceLayer::setInput."""


def slice_layer(layer: Layer) -> Lowered:
    """Take `size` elements per axis from `start` in steps of `stride`, which may be 0 or negative.

    Each comes from the layer or from an input; with axes, they speak of those axes only.
    Source: ISliceLayer and SampleMode in NvInfer.h.
    """
    mode = layer.option("mode")
    stated = {
        START: layer.ints("start"),
        SIZE: layer.ints("shape"),
        STRIDE: layer.ints("stride"),
        AXES: layer.ints("axes"),
    }
    for index in stated:
        known = layer.known_input(index)
        if known is not None:
            stated[index] = tuple(sizes(known))

    def run(x: Tensor, *optional: Tensor | None) -> Tensor:
        def value(index: int) -> list[int] | None:
            own = stated[index]
            return sizes(optional[index - 1]) if own is None and has(index) else own and list(own)  # type: ignore

        def has(index: int) -> bool:
            return index <= len(optional) and optional[index - 1] is not None

        start, size, stride = _on_every_axis(x, (value(START), value(SIZE), value(STRIDE)), value(AXES))
        inside = _clipped(x, start, size, stride)
        if inside is not None:
            return inside
        fill = optional[FILL - 1] if has(FILL) else None
        return _sampled(x, (start, size, stride), mode, fill)

    return Lowered(run, is_view=True)


def _on_every_axis(
    x: Tensor, stated: tuple[list[int] | None, ...], axes: list[int] | None
) -> tuple[list[int], list[int], list[int]]:
    """Return start, size and stride for all axes of x; an axis not named is taken whole."""
    rank = x.dim()
    defaults = ([0] * rank, list(x.shape), [1] * rank)
    if axes is None:
        start, size, stride = (own if own is not None else whole for own, whole in zip(stated, defaults, strict=True))
        return start, size, stride
    for whole, own in zip(defaults, stated, strict=True):
        if own is not None:
            for axis, item in zip(axes, own, strict=True):
                whole[axis % rank] = item
    return defaults


def _clipped(x: Tensor, start: list[int], size: list[int], stride: list[int]) -> Tensor | None:
    """Return the slice as a view, or by one index per axis, where no element lies outside; None otherwise."""
    for axis, count in enumerate(size):
        last = start[axis] + (count - 1) * stride[axis]
        if count > 0 and not (min(start[axis], last) >= 0 and max(start[axis], last) < x.shape[axis]):
            return None
    for axis, count in enumerate(size):
        if count == x.shape[axis] and (stride[axis] == 1 or count <= 1):
            continue
        if stride[axis] > 0 or count == 0:
            step = max(stride[axis], 1)
            first = min(start[axis], x.shape[axis]) if count else 0
            x = x[(slice(None),) * axis + (slice(first, first + (count - 1) * step + 1 if count else first, step),)]
        else:
            x = x.index_select(axis, _positions(start[axis], count, stride[axis], x.device))
    return x


def _positions(start: int, count: int, stride: int, device: torch.device) -> Tensor:
    """Return the positions that a slice reads along one axis."""
    return start + stride * torch.arange(count, device=device)


def _sampled(x: Tensor, plan: tuple[list[int], list[int], list[int]], mode: str, fill: Tensor | None) -> Tensor:
    """Return the slice where some positions lie outside, which the mode gives a meaning."""
    if mode == "STRICT_BOUNDS":
        raise IndexError(f"slice from {plan[0]}, size {plan[1]}, stride {plan[2]} reaches outside {list(x.shape)}")
    if mode == "FILL" and all(step == 1 for step in plan[2]):
        return _padded(x, plan[0], plan[1], fill)
    is_inside = torch.ones([], dtype=torch.bool, device=x.device)
    for axis, (start, count, stride) in enumerate(zip(*plan, strict=True)):
        position = _positions(start, count, stride, x.device)
        length = x.shape[axis]
        valid = (position >= 0) & (position < length)
        is_inside = is_inside & valid.reshape(-1, *[1] * (x.dim() - axis - 1))
        x = x.index_select(axis, _wrapped(position, length, mode))
    if mode != "FILL":
        return x
    value = torch.zeros((), dtype=x.dtype, device=x.device) if fill is None else fill.reshape(())
    return torch.where(is_inside, x, value)


def _padded(x: Tensor, start: list[int], size: list[int], fill: Tensor | None) -> Tensor:
    """Return the slice of stride 1 by padding, negative where it trims."""
    amounts = []
    for axis in reversed(range(x.dim())):
        amounts += [-start[axis], start[axis] + size[axis] - x.shape[axis]]
    value = 0 if fill is None else fill.item()
    if x.dtype == torch.bool:
        return F.pad(x.to(torch.uint8), amounts, value=int(value)).bool()
    if isinstance(value, float) and not math.isfinite(value) and not x.is_floating_point():
        value = int(value)
    return F.pad(x, amounts, value=value)


def _wrapped(position: Tensor, length: int, mode: str) -> Tensor:
    """Return positions moved inside [0, length)."""
    if mode == "WRAP":
        return position % length
    if mode == "REFLECT":
        period = max(2 * (length - 1), 1)
        folded = position % period
        return torch.minimum(folded, period - folded) if length > 1 else torch.zeros_like(position)
    return position.clamp(0, max(length - 1, 0))
