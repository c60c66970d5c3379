"""Write primitives as layers of an `INetworkDefinition`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.network.graph import Graph, Tensor
from trtkit.network.lowering.ops import Dim, Ops
from trtkit.network.ops import arithmetic, linear, quantize, shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from trtkit.dtypes import DType

_ACTIVATIONS = ("sigmoid", "tanh", "relu")
_BINARY = {"add": "SUM", "mul": "PROD", "eq": "EQUAL", "gt": "GREATER", "lt": "LESS"}
_REDUCTIONS = {"mean": "AVG"}
_GRID_MODES = {"linear": "LINEAR", "nearest": "NEAREST", "cubic": "CUBIC"}
_GRID_PADDING = {"zeros": "FILL", "border": "CLAMP", "reflection": "REFLECT"}


class TrtOps(Ops[Tensor]):
    """Writes to a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._trt = graph.backend.trt
        self._network = graph.network

    def scope(self, name: str) -> AbstractContextManager[None]:
        return self.graph.scope(name)

    def constant(self, array: np.ndarray[Any, Any], dtype: DType | None = None) -> Tensor:
        return self.graph.constant(array, dtype=dtype)

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        return arithmetic.cast(x, dtype)

    def dequantize(self, x: Tensor, scale: float, dtype: DType) -> Tensor:
        return quantize.dequantize(x, quantize.scale_constant(self.graph, scale, "scale", dtype), dtype)

    def reshape(self, x: Tensor, dims: Sequence[Dim[Tensor]]) -> Tensor:
        layer = self._network.add_shuffle(x.trt)
        if _is_static(dims):
            layer.reshape_dims = tuple(dims)
        else:
            layer.set_input(1, self._dims(dims).trt)
        return self.graph.add(layer, "reshape")

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        return shape.transpose(x, tuple(order))

    def unsqueeze(self, x: Tensor, *axes: int) -> Tensor:
        return shape.unsqueeze(x, *axes)

    def squeeze(self, x: Tensor, *axes: int) -> Tensor:
        return shape.squeeze(x, *axes)

    def expand(self, x: Tensor, dims: Sequence[Dim[Tensor]]) -> Tensor:
        """See `Ops`. A slice that stays at the one element of an axis of size 1."""
        strides = tuple(0 if size == 1 else 1 for size in x.shape)
        starts = (0,) * x.rank
        if _is_static(dims):
            return self.graph.add(self._network.add_slice(x.trt, starts, tuple(dims), strides), "expand")
        layer = self._network.add_slice(x.trt, starts, starts, strides)
        layer.set_input(2, self._dims(dims).trt)
        return self.graph.add(layer, "expand")

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return shape.concat(list(parts), axis)

    def take(self, x: Tensor, axis: int, start: int, size: int) -> Tensor:
        return shape.take(x, axis, start, size)

    def pad(self, x: Tensor, axis: int, before: int, after: int, value: float = 0.0) -> Tensor:
        """See `Ops`. A slice that begins before the tensor and ends after it."""
        starts, strides = [0] * x.rank, (1,) * x.rank
        starts[axis] = -before
        dims = [self.size(x, axis) for axis in range(x.rank)]
        dims[axis] = dims[axis] + (before + after)
        static = _is_static(dims)
        layer = self._network.add_slice(x.trt, tuple(starts), tuple(dims) if static else (0,) * x.rank, strides)
        layer.mode = self._trt.SampleMode.FILL
        if not static:
            layer.set_input(2, self._dims(dims).trt)
        layer.set_input(4, self.graph.number(value, x.dtype).trt)
        return self.graph.add(layer, "pad")

    def gather(self, x: Tensor, index: Tensor, axis: int) -> Tensor:
        return self.graph.add(self._network.add_gather(x.trt, index.trt, axis % x.rank), "gather")

    def gather_elements(self, x: Tensor, index: Tensor, axis: int) -> Tensor:
        layer = self._network.add_gather_v2(x.trt, index.trt, self._trt.GatherMode.ELEMENT)
        layer.axis = axis % x.rank
        return self.graph.add(layer, "gather_elements")

    def gather_nd(self, x: Tensor, index: Tensor, batch_dims: int = 0) -> Tensor:
        layer = self._network.add_gather_v2(x.trt, index.trt, self._trt.GatherMode.ND)
        layer.num_elementwise_dims = batch_dims
        return self.graph.add(layer, "gather_nd")

    def scatter_nd(self, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
        layer = self._network.add_scatter(x.trt, index.trt, updates.trt, self._trt.ScatterMode.ND)
        return self.graph.add(layer, "scatter_nd")

    def grid_sample(
        self, x: Tensor, grid: Tensor, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
    ) -> Tensor:
        layer = self._network.add_grid_sample(x.trt, grid.trt)
        layer.interpolation_mode = getattr(self._trt.InterpolationMode, _GRID_MODES[mode])
        layer.sample_mode = getattr(self._trt.SampleMode, _GRID_PADDING[padding])
        layer.align_corners = align_corners
        return self.graph.add(layer, "grid_sample")

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return linear.matmul(a, b)

    def unary(self, name: str, x: Tensor) -> Tensor:
        if name in _ACTIVATIONS:
            kind = getattr(self._trt.ActivationType, name.upper())
            return self.graph.add(self._network.add_activation(x.trt, kind), name)
        kind = getattr(self._trt.UnaryOperation, name.upper())
        return self.graph.add(self._network.add_unary(x.trt, kind), name)

    def binary(self, name: str, a: Tensor | float, b: Tensor | float) -> Tensor:
        return self.graph.elementwise(_BINARY.get(name, name.upper()), a, b)

    def reduce(self, name: str, x: Tensor, axes: Sequence[int], *, keep: bool = False) -> Tensor:
        kind = getattr(self._trt.ReduceOperation, _REDUCTIONS.get(name, name.upper()))
        mask = sum(1 << (axis % x.rank) for axis in axes)
        return self.graph.add(self._network.add_reduce(x.trt, kind, mask, keep), name)

    def select(self, condition: Tensor, then: Tensor, otherwise: Tensor | float) -> Tensor:
        if isinstance(otherwise, Tensor):
            rank = max(condition.rank, then.rank, otherwise.rank)
            then, otherwise = self.graph.with_rank(then, rank), self.graph.with_rank(otherwise, rank)
        return arithmetic.select(condition, then, otherwise)

    def top_k(self, x: Tensor, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
        layer = self._network.add_topk(x.trt, self._trt.TopKOperation.MAX, k, 1 << (axis % x.rank))
        values = self.graph.add(layer, "top_k")
        indices = layer.get_output(1)
        indices.name = f"{values.name}/indices"
        return values, self.graph.tensor(indices)

    def softmax(self, x: Tensor, axis: int = -1) -> Tensor:
        return arithmetic.softmax(x, axis)

    def size(self, x: Tensor, axis: int) -> Dim[Tensor]:
        if x.shape[axis] >= 0:
            return x.shape[axis]
        sizes = self.graph.add(self._network.add_shape(x.trt), "shape")
        return shape.take(sizes, 0, axis % x.rank, 1)

    def arange(self, size: Dim[Tensor], dtype: DType) -> Tensor:
        if isinstance(size, int):
            return self.graph.constant(np.arange(size, dtype=dtype.numpy), "arange")
        trt_dtype = getattr(self._trt.DataType, dtype.tensorrt)
        layer = self._network.add_fill((0,), self._trt.FillOperation.LINSPACE, trt_dtype)
        layer.set_input(0, size.trt)
        layer.set_input(1, self.graph.number(0, dtype).trt)
        layer.set_input(2, self.graph.number(1, dtype, 1).trt)
        return self.graph.add(layer, "arange")

    def repeat(
        self, count: int, state: Sequence[Tensor], step: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    ) -> list[Tensor]:
        """See `Ops`. A loop with one recurrence for each tensor."""
        loop = self._network.add_loop()
        limit = self.graph.constant(np.array(count, np.int32), "repeat/count")
        loop.add_trip_limit(limit.trt, self._trt.TripLimit.COUNT)
        carried = [loop.add_recurrence(x.trt) for x in state]
        results = step([self.graph.add(layer, "repeat/state") for layer in carried])
        outputs = []
        for layer, value in zip(carried, results, strict=True):
            layer.set_input(1, value.trt)
            last = loop.add_loop_output(layer.get_output(0), self._trt.LoopOutput.LAST_VALUE, 0)
            outputs.append(self.graph.add(last, "repeat/last"))
        return outputs

    def _dims(self, dims: Sequence[Dim[Tensor]]) -> Tensor:
        parts = [self.graph.constant(np.array([d], np.int64), "dim") if isinstance(d, int) else d for d in dims]
        return shape.concat(parts, 0)


def _is_static(dims: Sequence[Dim[Tensor]]) -> bool:
    return all(isinstance(size, int) for size in dims)
