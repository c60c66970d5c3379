"""Element-wise functions and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.graph import Operand, Tensor

if TYPE_CHECKING:
    from trtkit.dtypes import DType


def cast(x: Tensor, dtype: DType) -> Tensor:
    """Convert to another type; returns the tensor itself if it already has that type."""
    if x.dtype == dtype:
        return x
    trt_dtype = getattr(x.graph.backend.trt.DataType, dtype.tensorrt)
    return x.graph.add(x.graph.network.add_cast(x.trt, trt_dtype), f"cast_{dtype}")


def sqrt(x: Tensor) -> Tensor:
    """Take the square root."""
    return _unary(x, "SQRT")


def exponential(x: Tensor) -> Tensor:
    """Raise e to the power of x."""
    return _unary(x, "EXP")


def logarithm(x: Tensor) -> Tensor:
    """Take the natural logarithm."""
    return _unary(x, "LOG")


def absolute(x: Tensor) -> Tensor:
    """Take magnitudes."""
    return _unary(x, "ABS")


def nearest(x: Tensor) -> Tensor:
    """Round to the nearest integers, to the even one of two."""
    return _unary(x, "ROUND")


def logical_not(x: Tensor) -> Tensor:
    """Negate a bool tensor."""
    return _unary(x, "NOT")


def maximum(a: Tensor, b: Operand) -> Tensor:
    """Compute the element-wise maximum."""
    return a.graph.elementwise("MAX", a, b)


def minimum(a: Tensor, b: Operand) -> Tensor:
    """Compute the element-wise minimum."""
    return a.graph.elementwise("MIN", a, b)


def clip(x: Tensor, bound: float) -> Tensor:
    """Limit elements to -bound .. bound."""
    return minimum(maximum(x, -bound), bound)


def equal(a: Tensor, b: Operand) -> Tensor:
    """Compare two tensors element by element."""
    return a.graph.elementwise("EQUAL", a, b)


def mean(x: Tensor, axis: int) -> Tensor:
    """Average over one axis, which is kept with size 1."""
    return _reduce(x, "AVG", axis, keep=True)


def sum_over(x: Tensor, axis: int) -> Tensor:
    """Sum over one axis, which is removed."""
    return _reduce(x, "SUM", axis, keep=False)


def cumulative_sum(x: Tensor, axis: int) -> Tensor:
    """Sum along one axis up to each element, itself included."""
    graph = x.graph
    along = graph.constant(np.array(axis % x.rank, np.int32), "axis")
    operation = graph.backend.trt.CumulativeOperation.SUM
    return graph.add(graph.network.add_cumulative(x.trt, along.trt, operation, False, False), "cumulative_sum")


def max_over(x: Tensor, axis: int) -> Tensor:
    """Compute the maximum along one axis, which is kept with size 1."""
    return _reduce(x, "MAX", axis, keep=True)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Normalize exponentials along an axis."""
    layer = x.graph.network.add_softmax(x.trt)
    layer.axes = 1 << (axis % x.rank)
    return x.graph.add(layer, "softmax")


def select(condition: Tensor, then: Tensor, otherwise: Operand) -> Tensor:
    """Return `then` where the condition holds, else `otherwise`; shapes broadcast."""
    graph = then.graph
    rank = max(condition.rank, then.rank)
    other = otherwise if isinstance(otherwise, Tensor) else graph.number(otherwise, then.dtype, rank)
    inputs = [graph.with_rank(x, rank).trt for x in (condition, then, other)]
    return graph.add(graph.network.add_select(*inputs), "select")


def _unary(x: Tensor, operation: str) -> Tensor:
    op = getattr(x.graph.backend.trt.UnaryOperation, operation)
    return x.graph.add(x.graph.network.add_unary(x.trt, op), operation.lower())


def _reduce(x: Tensor, operation: str, axis: int, keep: bool) -> Tensor:
    op = getattr(x.graph.backend.trt.ReduceOperation, operation)
    layer = x.graph.network.add_reduce(x.trt, op, 1 << (axis % x.rank), keep)
    return x.graph.add(layer, {"AVG": "mean"}.get(operation, operation.lower()))
