"""Convolution and deconvolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.network.layer_view import window_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.network.layer_view import Window
    from trtkit.reference.layer import Layer, Op, Tensor

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_DECONVOLVE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def pad_sizes(before: list[int], after: list[int]) -> list[int]:
    """Return padding in the order of `F.pad`: last axis first."""
    return [size for pair in zip(reversed(before), reversed(after), strict=True) for size in pair]


def convolution(layer: Layer) -> Op:
    """Correlate [N, C, ...] with a kernel [K, C / groups, ...] given as weights or as input 1; bias likewise."""
    window = window_of(layer, "kernel_size_nd")
    groups, maps = layer.number("num_groups"), layer.number("num_output_maps")
    convolve = _CONVOLVE[len(window.size)]
    kernel, bias = _parameters(layer, (maps, -1, *window.size))

    def apply(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        if window.is_symmetric:
            return convolve(x, kernel, bias, window.stride, window.before, window.dilation, groups)
        padded = F.pad(x, pad_sizes(*window.padding(tuple(x.shape[2:]))))
        return convolve(padded, kernel, bias, window.stride, 0, window.dilation, groups)

    return _with_parameters(layer, apply, kernel, bias)


def deconvolution(layer: Layer) -> Op:
    """Transpose-convolve [N, C, ...] with a kernel [C, K / groups, ...]; padding crops the result.

    Output size: (input - 1) * stride + dilated kernel - padding, input * stride in the SAME modes. A negative
    padding extends the result. Source: IDeconvolutionLayer in NvInfer.h.
    """
    window = window_of(layer, "kernel_size_nd")
    groups = layer.number("num_groups")
    deconvolve = _DECONVOLVE[len(window.size)]
    kernel, bias = _parameters(layer, (-1, layer.number("num_output_maps") // groups, *window.size))

    def apply(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        if window.is_symmetric and min(window.before) >= 0:
            stride, dilation = window.stride, window.dilation
            return deconvolve(x, kernel, bias, stride, window.before, 0, groups, dilation)
        full = deconvolve(x, kernel, None, window.stride, 0, 0, groups, window.dilation)
        before, after = _crop(window, tuple(x.shape[2:]))
        cropped = F.pad(full, pad_sizes([-size for size in before], [-size for size in after]))
        return cropped if bias is None else cropped + bias.reshape(-1, *[1] * len(window.size))

    return _with_parameters(layer, apply, kernel, bias)


def _crop(window: Window, spatial: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return what a deconvolution cuts off before and after each axis."""
    if not window.mode.startswith("SAME"):
        return list(window.before), list(window.after)
    before, after = [], []
    for axis, length in enumerate(spatial):
        total = (length - 1) * window.stride[axis] + window.reach(axis) - length * window.stride[axis]
        small, large = total // 2, total - total // 2
        before.append(small if window.mode == "SAME_UPPER" else large)
        after.append(large if window.mode == "SAME_UPPER" else small)
    return before, after


def _parameters(layer: Layer, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
    """Return kernel and bias where they are weights, in the type that products are summed in."""
    compute = layer.precision.accumulation(layer.input_dtype())
    kernel = None if layer.has_input(1) else layer.weights("kernel")
    bias = None if layer.has_input(2) else layer.weights("bias")
    groups = layer.number("num_groups")
    if kernel is not None and shape[0] == -1 and groups > 1:
        channels = kernel.numel() // max(1, int(torch.tensor(shape[1:]).prod()))
        kernel = kernel.reshape(channels, *shape[1:])
    return (
        None if kernel is None else kernel.reshape(shape).to(compute),
        None if bias is None else bias.to(compute),
    )


def _with_parameters(
    layer: Layer, apply: Callable[[Tensor, Tensor, Tensor | None], Tensor], kernel: Tensor | None, bias: Tensor | None
) -> Op:
    """Return code that adds the parameters, converting only where the sums run in another type."""
    dtype = layer.input_dtype()
    compute = layer.precision.accumulation(dtype)
    if kernel is not None and dtype == compute:
        return lambda x, *_: apply(x, kernel, bias)

    def run(x: Tensor, kernel_input: Tensor | None = None, bias_input: Tensor | None = None) -> Tensor:
        used = kernel if kernel is not None else kernel_input
        added = bias if bias is not None else bias_input
        assert used is not None
        added = None if added is None else added.to(compute)
        return apply(x.to(compute), used.to(compute), added).to(dtype)

    return run
