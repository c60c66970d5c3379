"""A layer as seen by the functions that write it to ONNX, and the nodes that they emit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from trtkit.dtypes import BF16, BOOL, FP16, FP32, INT64, DType
from trtkit.network.layer_graph import MISSING, LayerGraph, LayerWeights, TensorSpec
from trtkit.network.layer_view import LayerView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.network.host_array import Array

Value = str
"""The name of a tensor in the graph or function being written; empty for an omitted input."""


class NotInOnnxError(Exception):
    """Why a layer cannot be written."""


@dataclass
class Emitter:
    """Collects nodes. prefix: of their outputs' names."""

    prefix: str
    nodes: list[NodeProto] = field(default_factory=list)

    def emit(self, op: str, *inputs: Value, **attributes: Any) -> Value:
        """Add a node of a standard operator; return its output."""
        return self.emit_several(1, op, *inputs, **attributes)[0]

    def emit_several(self, outputs: int, op: str, *inputs: Value, **attributes: Any) -> tuple[Value, ...]:
        """Add a node of a standard operator; return its outputs."""
        stem = f"{self.prefix}{op}_{len(self.nodes)}"
        names = [stem, *(f"{stem}.{index}" for index in range(1, outputs))]
        trimmed = list(inputs)
        while trimmed and not trimmed[-1]:
            trimmed.pop()
        self.nodes.append(helper.make_node(op, trimmed, names, stem, **attributes))
        return tuple(names)

    def constant(self, value: Array, dtype: str = "int64") -> Value:
        """Add an array in a NumPy type as a constant."""
        return self.emit("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def cast(self, value: Value, dtype: DType) -> Value:
        return self.emit("Cast", value, to=onnx_type(dtype))

    def shape(self, value: Value, start: int = 0, end: int | None = None) -> Value:
        """Return sizes of some axes as an int64 vector."""
        limits = {"start": start} if end is None else {"start": start, "end": end}
        return self.emit("Shape", value, **limits)

    def size(self, value: Value, axis: int) -> Value:
        """Return one axis's size as an int64 scalar."""
        return self.emit("Squeeze", self.shape(value, axis, axis + 1))

    def ramp(self, size: Value) -> Value:
        """Return 0, 1, 2, ... as an int64 vector. size: an int64 scalar."""
        return self.emit("Range", self.constant(0), size, self.constant(1))


@dataclass(frozen=True, eq=False)
class OnnxLayer(LayerView):
    """One layer. values: its inputs in the graph or function being written; empty if omitted.

    constant: returns the weights of the CONSTANT layer that writes a slot, None for other slots.
    add_weights: writes weights of a shape into the file; returns their name.
    """

    graph: LayerGraph
    values: tuple[Value, ...]
    emitter: Emitter
    constant: Callable[[int], LayerWeights | None]
    add_weights: Callable[[str, LayerWeights, Sequence[int]], Value]

    def has(self, index: int) -> bool:
        """Whether optional input `index` is present."""
        return index < len(self.node.inputs) and self.node.inputs[index] != MISSING

    def value(self, index: int) -> Value:
        """Return input `index`; empty if it is omitted."""
        return self.values[index] if self.has(index) else ""

    def int64(self, index: int) -> Value:
        """Return input `index` as int64."""
        value = self.value(index)
        return value if self.input(index).dtype == INT64 else self.emitter.cast(value, INT64)

    def vector(self, index: int) -> Value:
        """Return input `index`, a scalar or a vector, as an int64 vector."""
        value = self.int64(index)
        return value if self.input(index).shape else self.emitter.emit("Reshape", value, self.emitter.constant([-1]))

    def scalar(self, index: int) -> Value:
        """Return input `index`, a single value of its own type, as a scalar."""
        value = self.value(index)
        shape = self.input(index).shape
        return value if shape == () else self.emitter.emit("Reshape", value, self.emitter.constant([]))

    def known(self, index: int) -> tuple[int, ...] | None:
        """Return the integers of input `index` if a CONSTANT layer holds them."""
        weights = self.constant(self.node.inputs[index]) if self.has(index) else None
        if weights is None or weights.dtype.is_float or weights.dtype.bits < BOOL.bits:
            return None
        return tuple(int(item) for item in weights.raw.view(weights.dtype.numpy)[: weights.count])

    def input(self, index: int = 0) -> TensorSpec:
        """Return the spec of a present input."""
        return self.graph.spec(self.node.inputs[index])

    def output(self, index: int = 0) -> TensorSpec:
        return self.graph.spec(self.node.outputs[index])

    def input_shape(self, index: int = 0) -> tuple[int, ...]:
        """Return an input's shape, -1 for sizes known at run time. Raises NotInOnnxError if its rank is unknown."""
        return _shape(self.input(index))

    def output_shape(self, index: int = 0) -> tuple[int, ...]:
        """Return an output's shape, -1 for sizes known at run time. Raises NotInOnnxError if its rank is unknown."""
        return _shape(self.output(index))

    def static_size(self, index: int, axis: int) -> int:
        """Return a size that must be known before the network runs. Raises NotInOnnxError if it is not."""
        size = self.input_shape(index)[axis]
        if size < 0:
            raise NotInOnnxError(f"axis {axis} of input {index} has no fixed size")
        return size

    def lacks(self, attribute: str) -> NotInOnnxError:
        """Return the error for a parameter that the layer does not have."""
        return NotInOnnxError(f"it has no `{attribute}`")

    def weights(self, name: str, shape: Sequence[int], dtype: DType) -> Value:
        """Write weights of the layer in a type; return their name, empty if there are none."""
        weights = self.node.weights.get(name)
        if weights is None:
            return ""
        value = self.add_weights(f"{self.node.name}/{name}", weights, shape)
        return value if weights.dtype == dtype else self.emitter.cast(value, dtype)

    def widened(self, index: int = 0) -> Value:
        """Return an input, converted to fp32 if it is fp16 or bf16."""
        return self.emitter.cast(self.value(index), FP32) if self.is_narrow(index) else self.value(index)

    def narrowed(self, value: Value) -> Value:
        """Return a result computed from `widened` inputs in the output's type."""
        return self.emitter.cast(value, self.output().dtype) if self.output().dtype in (FP16, BF16) else value

    def is_narrow(self, index: int = 0) -> bool:
        """Whether an input is fp16 or bf16."""
        return self.input(index).dtype in (FP16, BF16)

    def like(self, value: float, index: int = 0) -> Value:
        """Return a constant in an input's type; fp32 if the input is widened."""
        dtype = FP32 if self.is_narrow(index) else self.input(index).dtype
        return self.emitter.constant(value, dtype.numpy)


def onnx_type(dtype: DType) -> int:
    """Return ONNX's number for a type."""
    return int(TensorProto.DataType.Value(dtype.onnx))


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    if spec.shape is None:
        raise NotInOnnxError(f"the rank of `{spec.name}` is unknown")
    return spec.shape
