"""Write primitives and loops as nodes of an ONNX function, with static knowledge of types and shapes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from trtkit.dtypes import INT32, INT64, DType, from_onnx
from trtkit.network.host_array import array_dtype
from trtkit.network.lowering.onnx_value import OnnxValue, Operand, numpy_type, reshaped, snake_case, type_proto
from trtkit.network.lowering.ops import Dim, Ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.network.graph import Shape


OLDEST_OPSET = 17
"""The oldest opset of the written nodes: GridSample came with 16, and the model must have the same opset."""

_BINARY = {"eq": "Equal", "gt": "Greater", "lt": "Less"}
_GRID_MODES = {"linear": "bilinear", "cubic": "bicubic"}
# Reductions take axes as an input from this opset on, before as an attribute.
_AXES_ARE_INPUT = {"ReduceSum": 13}


class OnnxOps(Ops[OnnxValue]):
    """Collects nodes. opset: of the model that they become part of. prefix: precedes every name, with a slash."""

    def __init__(self, opset: int, prefix: str = "") -> None:
        assert opset >= OLDEST_OPSET
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self._scopes = [prefix] if prefix else []
        self._names: dict[str, int] = {}
        self._constants: dict[tuple[str, Shape, bytes], OnnxValue] = {}
        self._arrays: dict[str, onnx.TensorProto] = {}

    def input(self, name: str, dtype: DType, shape: Shape) -> OnnxValue:
        self._names[name] = 1
        return OnnxValue(self, name, shape, dtype)

    def function(
        self, name: str, inputs: Sequence[str], outputs: dict[str, OnnxValue], attributes: Sequence[str]
    ) -> onnx.FunctionProto:
        """Return the written nodes as a local function `trtkit::name`. outputs: values by their names."""
        for out, value in outputs.items():
            self._rename(value, out)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_function("trtkit", name, list(inputs), list(outputs), self.nodes, imports, list(attributes))

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def constant(self, array: np.ndarray[Any, Any], dtype: DType | None = None) -> OnnxValue:
        """See `Ops`. Equal arrays are written once."""
        dtype = dtype or array_dtype(array)
        array = np.ascontiguousarray(array.astype(numpy_type(dtype))).reshape(array.shape)
        key = (dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._unique("constant")
            kind = onnx.TensorProto.DataType.Value(dtype.onnx)
            tensor = helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)
            self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
            self._arrays[name] = tensor
            self._constants[key] = OnnxValue(self, name, array.shape, dtype)
        return self._constants[key]

    def cast(self, x: OnnxValue, dtype: DType) -> OnnxValue:
        if x.dtype == dtype:
            return x
        return self._node("Cast", [x], to=onnx.TensorProto.DataType.Value(dtype.onnx))

    def dequantize(self, x: OnnxValue, scale: float, dtype: DType) -> OnnxValue:
        return self._known("DequantizeLinear", [x, self._number(scale, dtype)], x.shape, dtype)

    def reshape(self, x: OnnxValue, dims: Sequence[Dim[OnnxValue]]) -> OnnxValue:
        return self._known("Reshape", [x, self._dims(dims)], reshaped(x.shape, dims))

    def transpose(self, x: OnnxValue, order: Sequence[int]) -> OnnxValue:
        return self._node("Transpose", [x], perm=list(order))

    def unsqueeze(self, x: OnnxValue, *axes: int) -> OnnxValue:
        return self._node("Unsqueeze", [x, self._vector(axes)])

    def squeeze(self, x: OnnxValue, *axes: int) -> OnnxValue:
        return self._node("Squeeze", [x, self._vector(axes)])

    def expand(self, x: OnnxValue, dims: Sequence[Dim[OnnxValue]]) -> OnnxValue:
        return self._known("Expand", [x, self._dims(dims)], tuple(d if isinstance(d, int) else -1 for d in dims))

    def concat(self, parts: Sequence[OnnxValue], axis: int) -> OnnxValue:
        return parts[0] if len(parts) == 1 else self._node("Concat", parts, axis=axis)

    def take(self, x: OnnxValue, axis: int, start: int, size: int) -> OnnxValue:
        ends = self._vector([start + size])
        return self._node("Slice", [x, self._vector([start]), ends, self._vector([axis % len(x.shape)])])

    def pad(self, x: OnnxValue, axis: int, before: int, after: int, value: float = 0.0) -> OnnxValue:
        pads = np.zeros((2, len(x.shape)), np.int64)
        pads[:, axis] = before, after
        return self._node("Pad", [x, self._vector(pads.reshape(-1)), self._number(value, x.dtype)])

    def gather(self, x: OnnxValue, index: OnnxValue, axis: int) -> OnnxValue:
        return self._node("Gather", [x, index], axis=axis)

    def gather_elements(self, x: OnnxValue, index: OnnxValue, axis: int) -> OnnxValue:
        return self._node("GatherElements", [x, index], axis=axis)

    def gather_nd(self, x: OnnxValue, index: OnnxValue, batch_dims: int = 0) -> OnnxValue:
        shape = (*index.shape[:-1], *x.shape[batch_dims + index.shape[-1] :])
        return self._known("GatherND", [x, self.cast(index, INT64)], shape, batch_dims=batch_dims)

    def scatter_nd(self, x: OnnxValue, index: OnnxValue, updates: OnnxValue) -> OnnxValue:
        return self._node("ScatterND", [x, self.cast(index, INT64), updates])

    def grid_sample(
        self,
        x: OnnxValue,
        grid: OnnxValue,
        *,
        mode: str = "linear",
        padding: str = "zeros",
        align_corners: bool = False,
    ) -> OnnxValue:
        spelled = _GRID_MODES.get(mode, mode) if self.opset < 20 else mode
        shape = (x.shape[0], x.shape[1], *grid.shape[1:-1])
        attributes: dict[str, Any] = {"mode": spelled, "padding_mode": padding, "align_corners": int(align_corners)}
        return self._known("GridSample", [x, grid], shape, **attributes)

    def matmul(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._node("MatMul", [a, b])

    def unary(self, name: str, x: OnnxValue) -> OnnxValue:
        return self._node(name.capitalize(), [x])

    def binary(self, name: str, a: Operand, b: Operand) -> OnnxValue:
        known = a if isinstance(a, OnnxValue) else b
        assert isinstance(known, OnnxValue)
        if name == "floor_div":
            quotient = self.binary("div", a, b)
            return self.unary("floor", quotient) if known.dtype.is_float else quotient
        sides = [x if isinstance(x, OnnxValue) else self._number(x, known.dtype) for x in (a, b)]
        return self._node(_BINARY.get(name, name.capitalize()), sides)

    def reduce(self, name: str, x: OnnxValue, axes: Sequence[int], *, keep: bool = False) -> OnnxValue:
        op_type = f"Reduce{name.capitalize()}"
        if self.opset >= _AXES_ARE_INPUT.get(op_type, 18):
            return self._node(op_type, [x, self._vector(axes)], keepdims=int(keep))
        return self._node(op_type, [x], axes=list(axes), keepdims=int(keep))

    def select(self, condition: OnnxValue, then: OnnxValue, otherwise: Operand) -> OnnxValue:
        other = otherwise if isinstance(otherwise, OnnxValue) else self._number(otherwise, then.dtype)
        return self._node("Where", [condition, then, other])

    def top_k(self, x: OnnxValue, k: int, axis: int = -1) -> tuple[OnnxValue, OnnxValue]:
        names = self._append("TopK", [x, self._vector([k])], 2, {"axis": axis})
        shape = tuple(k if index == axis % len(x.shape) else size for index, size in enumerate(x.shape))
        values, indices = (
            OnnxValue(self, name, shape, kind) for name, kind in zip(names, (x.dtype, INT64), strict=True)
        )
        return values, self.cast(indices, INT32)

    def softmax(self, x: OnnxValue, axis: int = -1) -> OnnxValue:
        return self._node("Softmax", [x], axis=axis)

    def size(self, x: OnnxValue, axis: int) -> Dim[OnnxValue]:
        if x.shape[axis] >= 0:
            return x.shape[axis]
        start = axis % len(x.shape)
        return self._known("Shape", [x], (1,), INT64, start=start, end=start + 1)

    def arange(self, size: Dim[OnnxValue], dtype: DType) -> OnnxValue:
        if isinstance(size, int):
            return self.constant(np.arange(size, dtype=dtype.numpy))
        zero, one = self._number(0, INT64), self._number(1, INT64)
        return self.cast(self._known("Range", [zero, self.squeeze(size, 0), one], (-1,), INT64), dtype)

    def repeat(
        self, count: int, state: Sequence[OnnxValue], step: Callable[[Sequence[OnnxValue]], Sequence[OnnxValue]]
    ) -> list[OnnxValue]:
        """See `Ops`. A Loop, whose body has its own constants."""
        limit, condition = self._number(count, INT64), self.constant(np.array(True))
        with self._inside() as nodes:
            names = [self._unique(f"repeat/{role}") for role in ("number", "condition", "goes_on")]
            carried = [OnnxValue(self, self._unique("repeat/state"), x.shape, x.dtype) for x in state]
            results = [self._known("Identity", [x], x.shape) for x in step(carried)]
        body = loop_body(self._unique("repeat/body"), nodes, names, carried, results)
        last = self._append("Loop", [limit, condition, *state], len(state), {"body": body})
        return [OnnxValue(self, name, x.shape, x.dtype) for name, x in zip(last, state, strict=True)]

    @contextmanager
    def _inside(self) -> Iterator[list[onnx.NodeProto]]:
        """Collect nodes and constants separately from those outside; yield the nodes."""
        outside, constants = self.nodes, self._constants
        self.nodes, self._constants = [], {}
        try:
            yield self.nodes
        finally:
            self.nodes, self._constants = outside, constants

    def _rename(self, value: OnnxValue, name: str) -> None:
        """Give a tensor its name outside the function; an input is copied."""
        if not any(value.name in node.output for node in self.nodes):
            self.nodes.append(helper.make_node("Identity", [value.name], [name], name=name))
            return
        for node in self.nodes:
            for names in (node.input, node.output):
                for index, current in enumerate(names):
                    if current == value.name:
                        names[index] = name

    def _number(self, value: float, dtype: DType) -> OnnxValue:
        return self.constant(np.array(value, np.float32 if dtype.is_float else dtype.numpy), dtype)

    def _vector(self, values: Sequence[int] | np.ndarray[Any, Any]) -> OnnxValue:
        return self.constant(np.array(values, np.int64))

    def _dims(self, dims: Sequence[Dim[OnnxValue]]) -> OnnxValue:
        if all(isinstance(size, int) for size in dims):
            return self._vector([size for size in dims if isinstance(size, int)])
        return self.concat([self._vector([size]) if isinstance(size, int) else size for size in dims], 0)

    def _known(
        self, op_type: str, inputs: Sequence[OnnxValue], shape: Shape, dtype: DType | None = None, **attributes: Any
    ) -> OnnxValue:
        """Write a node of known output shape; its type is the first input's unless given."""
        name = self._append(op_type, inputs, 1, attributes)[0]
        return OnnxValue(self, name, shape, dtype or inputs[0].dtype)

    def _node(self, op_type: str, inputs: Sequence[OnnxValue], **attributes: Any) -> OnnxValue:
        return self._nodes(op_type, inputs, 1, **attributes)[0]

    def _nodes(self, op_type: str, inputs: Sequence[OnnxValue], outputs: int, **attributes: Any) -> list[OnnxValue]:
        """Write a node and infer its outputs with ONNX."""
        names = self._append(op_type, inputs, outputs, attributes)
        schema = onnx.defs.get_schema(op_type, self.opset)
        types = {x.name: type_proto(x) for x in inputs}
        data = {x.name: self._arrays[x.name] for x in inputs if x.name in self._arrays}
        imports = [helper.make_opsetid("", self.opset)]
        inferred = onnx.shape_inference.infer_node_outputs(schema, self.nodes[-1], types, data, opset_imports=imports)
        return [self._value(name, inferred[name]) for name in names]

    def _append(self, op_type: str, inputs: Sequence[OnnxValue], outputs: int, attributes: dict[str, Any]) -> list[str]:
        """Add a node; return the names of its outputs, the first of which is the node's own."""
        name = self._unique(snake_case(op_type))
        names = [name, *(f"{name}/{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, [x.name for x in inputs], names, name=name, **attributes))
        return names

    def _value(self, name: str, inferred: onnx.TypeProto) -> OnnxValue:
        tensor = inferred.tensor_type
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
        dtype = from_onnx(onnx.TensorProto.DataType.Name(tensor.elem_type))
        assert dtype is not None
        return OnnxValue(self, name, shape, dtype)

    def _unique(self, role: str) -> str:
        """Return the path of `role`, with a number if it was used before."""
        name = "/".join([*self._scopes, role])
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return f"{name}_{count}" if count else name


_SCALARS = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.BOOL)


def loop_body(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    scalars: Sequence[str],
    carried: Sequence[OnnxValue],
    results: Sequence[OnnxValue],
) -> onnx.GraphProto:
    """Return the body of a Loop that never ends early.

    nodes: the step's computation. scalars: names of the step's number, the incoming and the returned condition.
    carried: incoming tensors. results: the step's outputs.
    """
    goes_on = helper.make_node("Identity", [scalars[1]], [scalars[2]], name=scalars[2])
    values = [helper.make_tensor_value_info(name, kind, []) for name, kind in zip(scalars, _SCALARS, strict=True)]
    inputs = [*values[:2], *(helper.make_value_info(x.name, type_proto(x)) for x in carried)]
    outputs = [values[2], *(helper.make_value_info(x.name, type_proto(x)) for x in results)]
    return helper.make_graph([*nodes, goes_on], name, inputs, outputs)
