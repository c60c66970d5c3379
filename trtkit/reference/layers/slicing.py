"""Slice, in every sample mode."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Lowered, Tensor, sizes

START, SIZE, STRIDE, FILL, AXES = 1, 2, 3, 4, 5
"""Input numbers of ISliceLayer::setInput."""
_MOST_VIEWS = 256  # that a layer remembers, by the shapes and numbers it was given


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

    indices = [index for index, value in stated.items() if value is None and layer.has_input(index)]
    views: dict[tuple[object, ...], tuple[slice, ...]] = {}

    def run(x: Tensor, *optional: Tensor | None) -> Tensor:
        numbers = {index: tuple(sizes(optional[index - 1])) for index in indices}  # type: ignore[arg-type]
        key = (x.shape, *numbers.values())
        if (view := views.get(key)) is not None:
            return x[view]
        now = {**stated, **numbers}
        start, size, stride = _on_every_axis(x, (now[START], now[SIZE], now[STRIDE]), now[AXES])
        if not _is_inside(x, start, size, stride):
            return _sampled(x, start, size, stride, mode, optional[FILL - 1] if len(optional) >= FILL else None)
        if any(step <= 0 and count > 1 for step, count in zip(stride, size, strict=True)):
            return _indexed(x, start, size, stride)
        if len(views) == _MOST_VIEWS:
            views.clear()
        views[key] = view = tuple(map(_slice, start, size, stride))
        return x[view]

    return Lowered(run, is_view=True)


def _on_every_axis(
    x: Tensor, stated: tuple[tuple[int, ...] | None, ...], axes: tuple[int, ...] | None
) -> tuple[list[int], list[int], list[int]]:
    """Return start, size and stride for all axes of x; an axis not named is taken whole."""
    rank = x.dim()
    defaults = ([0] * rank, list(x.shape), [1] * rank)
    for whole, numbers in zip(defaults, stated, strict=True):
        if numbers is not None:
            for axis, item in zip(range(rank) if axes is None else axes, numbers, strict=True):
                whole[axis % rank] = item
    return defaults


def _is_inside(x: Tensor, start: list[int], size: list[int], stride: list[int]) -> bool:
    """Whether no element of a slice lies outside x."""
    for length, first, count, step in zip(x.shape, start, size, stride, strict=True):
        last = first + (count - 1) * step
        if count > 0 and not (min(first, last) >= 0 and max(first, last) < length):
            return False
    return True


def _slice(start: int, count: int, stride: int) -> slice:
    """Return what a slice reads along one axis, as an index."""
    return slice(start, start + (count - 1) * stride + 1, max(stride, 1)) if count else slice(0, 0)


def _indexed(x: Tensor, start: list[int], size: list[int], stride: list[int]) -> Tensor:
    """Return the slice by one index for each axis, some of them backward or many times the same."""
    for axis, (first, count, step) in enumerate(zip(start, size, stride, strict=True)):
        if (first, count, step) != (0, x.shape[axis], 1):
            x = x.index_select(axis, _positions(first, count, step, x.device))
    return x


def _positions(start: int, count: int, stride: int, device: torch.device) -> Tensor:
    """Return the positions that a slice reads along one axis."""
    return start + stride * torch.arange(count, device=device)


def _sampled(
    x: Tensor, starts: list[int], counts: list[int], strides: list[int], mode: str, fill: Tensor | None
) -> Tensor:
    """Return the slice where some positions lie outside, which the mode gives a meaning."""
    if mode == "STRICT_BOUNDS":
        raise IndexError(f"slice from {starts}, size {counts}, stride {strides} reaches outside {list(x.shape)}")
    if mode == "FILL" and all(step == 1 for step in strides):
        return _padded(x, starts, counts, fill)
    is_inside = torch.ones([], dtype=torch.bool, device=x.device)
    for axis, (start, count, stride) in enumerate(zip(starts, counts, strides, strict=True)):
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
