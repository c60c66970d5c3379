"""Static knowledge of an ONNX model: types, shapes and constants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx

from trtkit.dtypes import FP32, from_onnx
from trtkit.network.foreign import Fact
from trtkit.network.onnx.care import all_graphs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

# Constants of up to this many elements may be sizes; larger ones are weights, which shape inference does not need.
_MOST_SIZES = 64


class Knowledge:
    """Static knowledge of a model's tensors. What is learned about custom ops is propagated to the nodes after them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._constants = dict(_constants(model))
        self._skeleton = _skeleton(model)
        self._facts: dict[str, Fact] = {}
        self._learned: dict[str, Fact] = {}
        self._is_stale = False
        self._infer()

    def fact(self, name: str) -> Fact | None:
        """Return a tensor's type and shape; None if they are unknown."""
        if name and name not in self._facts and self._is_stale:
            self._infer()
        return self._facts.get(name)

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return a tensor's value; None if it is computed."""
        tensor = self._constants.get(name)
        return None if tensor is None else onnx.numpy_helper.to_array(tensor)

    def learn(self, names: Sequence[str], facts: Iterable[Fact]) -> None:
        """Record the outputs of a custom op."""
        for name, fact in zip(names, facts, strict=False):
            if name:
                self._learned[name] = self._facts[name] = fact
                _set(self._skeleton.graph.value_info, _value_info(name, fact))
                self._is_stale = True

    def annotate(self, model: onnx.ModelProto) -> None:
        """Write what was learned into the model, since ONNX infers nothing after unknown nodes."""
        outputs = {value.name for value in model.graph.output}
        for name, fact in self._learned.items():
            if name not in outputs:
                _set(model.graph.value_info, _value_info(name, fact))

    def _infer(self) -> None:
        """Run ONNX's inference on the model without its weights."""
        inferred = onnx.shape_inference.infer_shapes(self._skeleton, data_prop=True)
        self._is_stale = False
        for graph in all_graphs(inferred.graph):
            for value in (*graph.input, *graph.output, *graph.value_info):
                fact = _fact(value)
                if fact is not None:
                    self._facts[value.name] = fact
        self._facts |= {name: _tensor_fact(tensor) for name, tensor in self._constants.items()} | self._learned


def _constants(model: onnx.ModelProto) -> Iterable[tuple[str, onnx.TensorProto]]:
    """Yield initializers and Constant nodes by the names of their tensors."""
    for graph in all_graphs(model.graph):
        yield from ((tensor.name, tensor) for tensor in graph.initializer)
        for node in graph.node:
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            if node.op_type == "Constant" and value is not None:
                yield node.output[0], value


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inputs instead of weights."""
    skeleton = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = skeleton.graph
    graph.name = model.graph.name
    for name in ("node", "input", "output", "value_info"):
        getattr(graph, name).extend(getattr(model.graph, name))
    fed = {value.name for value in graph.input}
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _MOST_SIZES:
            graph.initializer.append(tensor)
        elif tensor.name not in fed:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return skeleton


def _fact(value: onnx.ValueInfoProto) -> Fact | None:
    """Return what a model states about a tensor."""
    tensor = value.type.tensor_type
    dtype = from_onnx(onnx.TensorProto.DataType.Name(tensor.elem_type))
    if dtype is None or not tensor.HasField("shape"):
        return None
    return Fact(dtype, tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim))


def _tensor_fact(tensor: onnx.TensorProto) -> Fact:
    dtype = from_onnx(onnx.TensorProto.DataType.Name(tensor.data_type))
    return Fact(dtype or FP32, tuple(tensor.dims))


def _value_info(name: str, fact: Fact) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.DataType.Value(fact.dtype.onnx)
    return onnx.helper.make_tensor_value_info(name, kind, [size if size >= 0 else None for size in fact.shape])


def _set(values: Any, value: onnx.ValueInfoProto) -> None:
    """Replace what a graph states about a tensor."""
    for index, known in enumerate(values):
        if known.name == value.name:
            del values[index]
            break
    values.append(value)


# They compute nothing: their inputs were already rounded.
_MOVES = {
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape"),
    *("Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}


def widest_rounding(model: onnx.ModelProto) -> str:
    """Return the widest floating-point type below fp32 that a model's own nodes round to; empty if none does."""
    known, types = Knowledge(model), set()
    for node in model.graph.node:
        is_cast = node.op_type == "Cast" and known.constant(node.input[0]) is None
        if node.op_type in _MOVES and not is_cast:
            continue
        for name in node.output:
            fact = known.fact(name)
            if fact is not None and fact.dtype.is_float and fact.dtype.bits == 16:
                types.add(fact.dtype)
    return max(types, key=lambda dtype: dtype.tolerance).name if types else ""
