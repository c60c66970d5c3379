"""Which cached tokens each new token may attend to, and how far they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import FP16, FP32
from trtkit.network.ops.arithmetic import cast, select
from trtkit.network.ops.shape import unsqueeze

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.network.graph import Graph, Tensor


def causal_mask(position_ids: Tensor, kv_lengths: Tensor, length: int, window: int | None = None) -> Tensor:
    """Return true where a token may attend: position_ids [B, S], kv_lengths [B] -> [B, 1, S, length].

    A token sees the cache up to its own position, `window` tokens with itself where given, and nothing behind the
    slot's length.
    """
    graph = position_ids.graph
    with graph.scope("sliding_mask" if window else "causal_mask"):
        columns, rows = _columns(graph, length), unsqueeze(position_ids, 1, 3)
        allowed = (columns < rows + 1) & (columns < unsqueeze(kv_lengths, 1, 2, 3))
        return allowed & (columns > rows - window) if window else allowed


def alibi_mask(allowed: Tensor, position_ids: Tensor, slopes: np.ndarray[Any, Any], dtype: DType) -> Tensor:
    """Return what ALiBi adds to scores, its lowest value where not allowed [B, 1, S, T] -> [B, N, S, T].

    Distances rather than key positions are scaled: the softmax is the same, and near keys stay exact in 16 bits.
    Source: https://arxiv.org/abs/2108.12409.
    """
    graph = position_ids.graph
    with graph.scope("alibi"):
        distance = _columns(graph, allowed.shape[-1]) - unsqueeze(position_ids, 1, 3)
        slope = graph.constant(slopes.astype(np.float32).reshape(1, -1, 1, 1), "slopes")
        return cast(select(allowed, cast(distance, FP32) * slope, lowest(dtype)), dtype)


def alibi_slopes(heads: int) -> np.ndarray[Any, Any]:
    """Return each head's slope: a geometric sequence; odd members of a finer one beyond a power of two."""
    power = 2 ** math.floor(math.log2(heads))
    base = 2.0 ** (-8.0 / power)
    slopes = [base ** (index + 1) for index in range(power)]
    fine = 2.0 ** (-4.0 / power)
    slopes += [fine ** (2 * index + 1) for index in range(heads - power)]
    return np.array(slopes)


def lowest(dtype: DType) -> float:
    """Return a finite score that no other comes near: rows without any key must not become NaN."""
    return -65504.0 if dtype == FP16 else -3.0e38


def _columns(graph: Graph, length: int) -> Tensor:
    """Return cached positions [1, 1, 1, length]."""
    return graph.constant(np.arange(length, dtype=np.int32).reshape(1, 1, 1, -1), "cached_positions")
