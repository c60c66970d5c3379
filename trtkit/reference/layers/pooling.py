"""Max, average and blended pooling, and local response normalization."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.network.layer_view import Window, window_of
from trtkit.reference.layers.convolution import pad_sizes

if TYPE_CHECKING:
    from trtkit.reference.layer import Layer, Op, Tensor

_MAX = {2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {2: F.avg_pool2d, 3: F.avg_pool3d}


def pooling(layer: Layer) -> Op:
    """Reduce each window of [N, C, ...]."""
    window = window_of(layer, "window_size_nd")
    excludes = layer.flag("average_count_excludes_padding")
    kind, blend = layer.option("type"), layer.real("blend_factor")
    if kind == "MAX":
        return lambda x: _max_pool(x, window)
    if kind == "AVERAGE":
        return lambda x: _average_pool(x, window, excludes)

    def run(x: Tensor) -> Tensor:
        return (1 - blend) * _max_pool(x, window) + blend * _average_pool(x, window, excludes)

    return run


def _max_pool(x: Tensor, window: Window) -> Tensor:
    """Return each window's maximum; padding never wins."""
    pool = _MAX[len(window.size)]
    fits = all(2 * pad <= size for pad, size in zip(window.before, window.size, strict=True))
    if window.is_symmetric and fits:
        return pool(x, window.size, window.stride, window.before)
    lowest = -float("inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
    padded = F.pad(x, pad_sizes(*window.padding(tuple(x.shape[2:]))), value=lowest)
    return pool(padded, window.size, window.stride)


def _average_pool(x: Tensor, window: Window, excludes_padding: bool) -> Tensor:
    """Return each window's mean.

    The divisor is the window's overlap with the input, or with the padded input (never with what rounding up
    hangs over). Source: IPoolingLayer::setAverageCountExcludesPadding in NvInfer.h.
    """
    pool = _AVERAGE[len(window.size)]
    fits = all(2 * pad <= size for pad, size in zip(window.before, window.size, strict=True))
    if window.is_symmetric and fits:
        return pool(x, window.size, window.stride, window.before, False, not excludes_padding)
    before, after = window.padding(tuple(x.shape[2:]))
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    if not excludes_padding:
        stated = after if window.mode.startswith("SAME") else list(window.after)
        counted = F.pad(counted, pad_sizes(before, stated), value=1.0)
        after = [size - pad for size, pad in zip(after, stated, strict=True)]
        counted = F.pad(counted, pad_sizes([0] * len(after), after))
        after = [size + pad for size, pad in zip(after, stated, strict=True)]
    else:
        counted = F.pad(counted, pad_sizes(before, after))
    padded = F.pad(x, pad_sizes(before, after))
    total = pool(padded, window.size, window.stride)
    return total / pool(counted, window.size, window.stride)


def local_response_normalization(layer: Layer) -> Op:
    """Divide by (k + alpha / window * sum of squares over neighbouring channels) ** beta."""
    window = layer.number("window_size")
    alpha, beta, k = (layer.real(name) for name in ("alpha", "beta", "k"))
    return lambda x: F.local_response_norm(x, window, alpha, beta, k)
