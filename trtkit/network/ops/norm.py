"""Norms over the last axis, statistics in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.ops.arithmetic import cast, mean, sqrt
from trtkit.network.ops.collective import all_reduce

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0, ranks: int = 1) -> Tensor:
    """Divide the last axis by its root mean square, times weight + offset. x: [..., D].

    ranks: how many hold equal parts of the axis; the mean is over all of them.
    Source: https://arxiv.org/abs/1910.07467. Gemma's weights are stored with an offset of -1.
    """
    x32 = cast(x, FP32)
    squares = mean(x32 * x32, axis=-1)
    if ranks > 1:
        squares = all_reduce(squares, ranks) / ranks
    y = x32 / sqrt(squares + eps)
    if weight is not None:
        scale = cast(weight, FP32)
        y = y * (scale + weight_offset if weight_offset else scale)
    return cast(y, x.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    """Normalize the last axis to zero mean and unit variance, times weight + offset, plus bias. x: [..., D].

    A weight [N, D] normalizes each of the N heads of x [B, S, N, D] with its own row. Source:
    https://arxiv.org/abs/1607.06450. Nemotron's weights are stored with an offset of -1.
    """
    graph = x.graph
    shape = weight.shape if weight is not None else x.shape[-1:]
    scale = _fp32(weight) if weight is not None else graph.constant(np.ones(shape, np.float32), "ones")
    scale = scale + weight_offset if weight_offset else scale
    shift = _fp32(bias) if bias is not None else graph.constant(np.zeros(shape, np.float32), "zeros")
    x32 = cast(x, FP32)
    inputs = [x32, graph.with_rank(scale, x.rank), graph.with_rank(shift, x.rank)]
    layer = graph.network.add_normalization_v2(*[tensor.trt for tensor in inputs], 1 << (x.rank - 1))
    layer.epsilon = eps
    return cast(graph.add(layer, "layer_norm"), x.dtype)


def _fp32(weight: Tensor) -> Tensor:
    return cast(weight, FP32)
