"""Bodies of custom ops as ONNX local functions: write them, inline them, and limit the resulting size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from trtkit.errors import SourceError
from trtkit.network.custom_op import DOMAIN, CustomOp, attribute_values
from trtkit.network.lowering.onnx_ops import OnnxOps
from trtkit.network.lowering.ops import FP32_SCOPE
from trtkit.network.onnx.care import all_graphs, all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtkit.network.foreign import Fact

_PLUGIN = " plugin"


def function_of(
    op: CustomOp, name: str, facts: Sequence[Fact | None], attributes: Any, opset: int, form: str | None = None
) -> onnx.FunctionProto:
    """Return the op's body for inputs with these facts and attributes, as the local function `trtkit::name`.

    It omits missing inputs: TensorRT's parser does not accept empty names there.
    """
    writer = OnnxOps(opset)
    values = [
        None if fact is None else writer.input(_input_name(op, index), fact.dtype, fact.shape)
        for index, fact in enumerate(facts)
    ]
    results = op.lower(writer, op.complete(values), attributes, op.form(form))
    inputs = [value.name for value in values if value is not None]
    outputs = {port.name: value for port, value in zip(op.outputs, results, strict=True)}
    function = writer.function(name, inputs, outputs, list(attribute_values(attributes)))
    function.doc_string = f"{DOMAIN}::{op.name}"
    return function


def mark_for_plugin(function: onnx.FunctionProto) -> None:
    """Mark a function that a plugin can replace, so that `inline` keeps it."""
    function.doc_string += _PLUGIN


def op_name(function: onnx.FunctionProto) -> str:
    """Return the name of the op whose body a function is."""
    return function.doc_string.removesuffix(_PLUGIN).partition("::")[2]


def inline(model: onnx.ModelProto) -> None:
    """Inline the bodies of custom ops; inner names become `<node>/<name in the body>`.

    Functions that a plugin can replace are kept.
    """
    bodies = {
        function.name: function
        for function in model.functions
        if function.domain == DOMAIN and not function.doc_string.endswith(_PLUGIN)
    }
    for graph in all_graphs(model.graph):
        nodes = [inner for node in graph.node for inner in _inlined(node, bodies)]
        del graph.node[:]
        graph.node.extend(nodes)
    kept = [function for function in model.functions if function.domain != DOMAIN or function.name not in bodies]
    del model.functions[:]
    model.functions.extend(kept)
    if any(function.domain == DOMAIN for function in kept):
        return
    imports = [entry for entry in model.opset_import if entry.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(imports)


def fp32_nodes(model: onnx.ModelProto) -> list[str]:
    """Return the names of inlined nodes that a conversion of the model to fp16 or bf16 must leave in fp32."""
    return [node.name for node in model.graph.node if f"/{FP32_SCOPE}/" in node.name]


def _input_name(op: CustomOp, index: int) -> str:
    """Return the name of an input; those of a variadic port are numbered."""
    port = op.inputs[min(index, len(op.inputs) - 1)]
    return f"{port.name}_{index - len(op.inputs) + 1}" if port.is_variadic else port.name


def _inlined(node: onnx.NodeProto, bodies: dict[str, onnx.FunctionProto]) -> list[onnx.NodeProto]:
    """Return a node, or the body that it calls with the node's tensors."""
    if node.domain != DOMAIN or node.op_type not in bodies:
        return [node]
    body = bodies[node.op_type]
    names = dict(zip(body.input, node.input, strict=False)) | dict(zip(body.output, node.output, strict=False))
    return [placed(inner, node.name, names) for inner in body.node]


def placed(inner: onnx.NodeProto, prefix: str, names: dict[str, str]) -> onnx.NodeProto:
    """Return a copy of a body's node, including loop bodies in it, with names of the model.

    prefix: precedes its names. names: of the body's inputs and outputs in the model.
    """
    copy = onnx.NodeProto()
    copy.CopyFrom(inner)
    copy.name = f"{prefix}/{inner.name}"
    for tensors in (copy.input, copy.output):
        for index, name in enumerate(tensors):
            tensors[index] = names.get(name) or f"{prefix}/{name}" if name else ""
    for attribute in copy.attribute:
        if attribute.HasField("g"):
            nodes = [placed(node, prefix, names) for node in attribute.g.node]
            for value in (*attribute.g.input, *attribute.g.output):
                value.name = f"{prefix}/{value.name}"
            del attribute.g.node[:]
            attribute.g.node.extend(nodes)
    return copy


MAX_NODES = 1_000_000
# ONNX's shape inference and onnxslim track each element of a vector, at 40 bytes or more each.
MAX_VECTOR = 2**24
_Key = tuple[str, str]


def check_size(model: onnx.ModelProto, where: str) -> None:
    """Refuse recursive functions, and those whose nested calls expand to more than MAX_NODES nodes.

    Thirty functions that each call the previous one twice are a gigabyte of nodes. Raises SourceError.
    """
    bodies = {(function.domain, function.name): function for function in model.functions}
    sizes: dict[_Key, int] = {}
    for key in bodies:
        _measure(key, bodies, sizes, where)
    count = _count(all_nodes(model.graph), sizes)
    if count > MAX_NODES:
        what = f"its functions expand to {count:.3g} nodes, at most {MAX_NODES} are taken"
        raise SourceError(what, where, "export the model without functions that call each other")


def check_vectors(model: onnx.ModelProto, where: str) -> None:
    """Refuse vector inputs of more than MAX_VECTOR elements. Raises SourceError."""
    for value in model.graph.input:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if len(sizes) == 1 and sizes[0] > MAX_VECTOR:
            what = f"input `{value.name}` is a vector of {sizes[0]} elements, at most {MAX_VECTOR} are taken"
            raise SourceError(what, where, "export the model with its real sizes")


def _measure(key: _Key, bodies: dict[_Key, onnx.FunctionProto], sizes: dict[_Key, int], where: str) -> None:
    """Count the nodes of a function's body and of all that it calls, callees first."""
    open_calls, stack = set[_Key](), [key]
    while stack:
        current = stack[-1]
        needed = {(node.domain, node.op_type) for node in all_nodes(bodies[current])} & bodies.keys() - sizes.keys()
        if current in sizes or not needed:
            sizes.setdefault(current, _count(all_nodes(bodies[current]), sizes))
            open_calls.discard(current)
            stack.pop()
            continue
        open_calls.add(current)
        if needed & open_calls:
            name = f"{current[0]}::{current[1]}"
            raise SourceError(f"function `{name}` calls itself", where, "export the model without recursive functions")
        stack.extend(needed)


def _count(nodes: Iterable[onnx.NodeProto], sizes: dict[_Key, int]) -> int:
    return sum(sizes.get((node.domain, node.op_type), 1) for node in nodes)
