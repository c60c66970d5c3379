"""Reductions, top-k, cumulative sums and normalization."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Op, Tensor

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def reduce(layer: Layer) -> Op:
    """Reduce axes; sums of whole numbers keep their type, their average drops the fraction."""
    axes, keep, dtype = layer.axes(), layer.flag("keep_dims"), layer.input_dtype()
    reduction = _REDUCTIONS[layer.option("op")]
    if not axes:
        return lambda x: x.clone()
    return lambda x: reduction(x, axes, keep).to(dtype)


def _average(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    """Return the mean."""
    if x.is_floating_point():
        return x.mean(axes, keep)
    total = x.sum(axes, keep)
    count = x.numel() // max(total.numel(), 1)
    return torch.div(total, count, rounding_mode="trunc")


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    """Return the product, in fp32 for narrower floats."""
    y = x.float() if x.is_floating_point() and x.dtype.itemsize < 4 else x
    for axis in sorted(axes, reverse=True):
        y = y.prod(axis, keep)
    return y


def _extreme(x: Tensor, axes: tuple[int, ...], keep: bool, is_max: bool) -> Tensor:
    """Return the maximum or minimum; of no elements, the lowest or highest value of the type."""
    if all(x.shape[axis] for axis in axes):
        return x.amax(axes, keep) if is_max else x.amin(axes, keep)
    limits = None if x.is_floating_point() else torch.iinfo(x.dtype)
    worst = limits.min if limits else -float("inf")
    best = limits.max if limits else float("inf")
    return x.new_full(x.sum(axes, keep).shape, worst if is_max else best)


_REDUCTIONS: dict[str, Reduction] = {
    "SUM": lambda x, axes, keep: x.sum(axes, keep, dtype=x.dtype),
    "AVG": _average,
    "PROD": _product,
    "MAX": lambda x, axes, keep: _extreme(x, axes, keep, True),
    "MIN": lambda x, axes, keep: _extreme(x, axes, keep, False),
}


def top_k(layer: Layer) -> Op:
    """Return the k largest or smallest along one axis, sorted, and their positions; of equals the first leads."""
    (axis,) = layer.axes()
    is_max, stated = layer.option("op") == "MAX", layer.number("k")
    index_dtype = layer.output_dtype(1)

    def run(x: Tensor, k: Tensor | None = None) -> tuple[Tensor, Tensor]:
        count = stated if k is None else int(k)
        if count == 1:
            values, indices = x.max(axis, True) if is_max else x.min(axis, True)
        else:
            values, indices = torch.sort(x, dim=axis, descending=is_max, stable=True)
            values, indices = values.narrow(axis, 0, count), indices.narrow(axis, 0, count)
        return values, indices.to(index_dtype)

    return run


def cumulative(layer: Layer) -> Op:
    """Sum along an axis up to each element, from either end, with or without the element itself."""
    is_exclusive, is_reverse, dtype = layer.flag("exclusive"), layer.flag("reverse"), layer.input_dtype()

    def run(x: Tensor, axis: Tensor) -> Tensor:
        along = int(axis) % x.dim()
        y = x.flip(along) if is_reverse else x
        wide = y.float() if x.is_floating_point() and x.dtype.itemsize < 4 else y
        total = wide.cumsum(along, dtype=wide.dtype)
        if is_exclusive:
            total = total.roll(1, along)
            total.narrow(along, 0, min(1, x.shape[along])).zero_()
        total = total.to(dtype)
        return total.flip(along) if is_reverse else total

    return run


def normalization(layer: Layer) -> Op:
    """Compute (x - mean) / sqrt(variance + epsilon) * scale + bias, statistics in fp32 at least.

    With groups, channels are split first. scale and bias broadcast to the input; [1, groups, 1, 1] is spread over
    the channels of each group. Source: INormalizationLayer in NvInfer.h.
    """
    axes, epsilon = layer.axes(), layer.real("epsilon")
    groups, dtype = layer.number("num_groups"), layer.input_dtype()

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        wide = x.float() if dtype.itemsize < 4 else x
        weight, bias = weight.to(wide.dtype), bias.to(wide.dtype)
        if groups == 1 and _is_layer_norm(axes, x, weight, bias):
            shape = x.shape[axes[0] :]
            return F.layer_norm(wide, shape, weight.reshape(shape), bias.reshape(shape), epsilon).to(dtype)
        normal = _normalized(wide, axes, epsilon, groups)
        return (normal * _spread(weight, x) + _spread(bias, x)).to(dtype)

    return run


def _is_layer_norm(axes: tuple[int, ...], x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether torch's layer norm computes it: the last axes, with one parameter per element of them."""
    return all(
        axes == tuple(range(x.dim() - len(axes), x.dim()))
        and parameter.shape[axes[0] - x.dim() :] == x.shape[axes[0] :]
        and parameter.numel() == x.shape[axes[0] :].numel()
        for parameter in (weight, bias)
    )


def _normalized(x: Tensor, axes: tuple[int, ...], epsilon: float, groups: int) -> Tensor:
    """Return x with zero mean and unit variance over axes, and over the channels of each group."""
    if groups == 1:
        variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + epsilon)
    split = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    inside = tuple({2, *(axis + 1 for axis in axes if axis > 1)})
    variance, mean = torch.var_mean(split, inside, correction=0, keepdim=True)
    return ((split - mean) * torch.rsqrt(variance + epsilon)).reshape(x.shape)


def _spread(parameter: Tensor, x: Tensor) -> Tensor:
    """Repeat one value per group over the group's channels."""
    channels = parameter.shape[1] if parameter.dim() > 1 else 1
    if channels in (1, x.shape[1]):
        return parameter
    return parameter.repeat_interleave(x.shape[1] // channels, 1)
