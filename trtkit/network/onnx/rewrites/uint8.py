"""Quantized tensors of uint8 as int8: TensorRT knows uint8 at a network's borders only.

Tensors between QuantizeLinear and DequantizeLinear, also through nodes that only move elements, hold x - 128 instead,
and their zero points are 128 lower. Other tensors of uint8 inside the model become int32.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtkit.dtypes import UINT8
from trtkit.network.onnx.facts import Knowledge

# Nodes that move elements of their first input (all inputs of Concat) and know nothing of their values.
_MOVERS = {
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool",
    "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_SUFFIX = "/int8"


@dataclass
class _Flow:
    """uint8 tensors of a graph. group: which tensors hold the same kind of values, by one of them."""

    graph: onnx.GraphProto
    tensors: set[str]
    group: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """Return the tensor that represents all that `name` is moved from or to."""
        while self.group.get(name, name) != name:
            name = self.group[name]
        return name

    def join(self, names: list[str]) -> None:
        """Put tensors into one group."""
        for name in names:
            self.group[self.root(name)] = self.root(names[0])


def shift_uint8(model: onnx.ModelProto) -> Counter[str]:
    """Replace quantized uint8 tensors of the main graph, in place; return what was done."""
    constants = constants_of(model.graph)
    quantizers = [node for node in model.graph.node if _is_constant_quantizer(node, constants)]
    casts = [node for node in model.graph.node if casts_to_uint8(node)]
    if not quantizers and not casts:
        return Counter()
    _repeat_casts(model.graph)
    knowledge = Knowledge(model)
    names = {name for node in model.graph.node for name in (*node.input, *node.output) if name}
    facts = {name: knowledge.fact(name) for name in names}
    flow = _Flow(model.graph, {name for name, fact in facts.items() if fact is not None and fact.dtype == UINT8})
    for node in model.graph.node:
        if node.op_type in _MOVERS:
            moved = [name for name in (*_data(node), *node.output[:1]) if name in flow.tensors]
            flow.join(moved) if moved else None
    chosen = {flow.root(name) for node in quantizers if (name := _quantized(node)) in flow.tensors}
    shifted = {name for name in flow.tensors if flow.root(name) in chosen}
    done = Counter({"uint8 tensor": len(shifted)}) if shifted else Counter()
    if shifted:
        _shift(model, shifted, constants)
    done["Cast to uint8"] += _widen_casts(model, flow.tensors - shifted, knowledge)
    return +done


def _data(node: onnx.NodeProto) -> list[str]:
    return list(node.input) if node.op_type == "Concat" else list(node.input[:1])


def _quantized(node: onnx.NodeProto) -> str:
    """Return the quantized tensor of a node, "" where its scale or zero point is left to arithmetic."""
    return node.output[0] if node.op_type == _QUANTIZE else node.input[0]


def casts_to_uint8(node: onnx.NodeProto) -> bool:
    """Whether a node makes uint8 of another type."""
    return node.op_type == "Cast" and any(a.name == "to" and a.i == TensorProto.UINT8 for a in node.attribute)


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return initializers and Constant nodes by the names of their tensors."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constants[node.output[0]] = attribute.t
    return constants


def _is_constant_quantizer(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    """Whether a node quantizes, or the reverse, by a constant zero point or none; others become arithmetic."""
    if node.op_type not in {_QUANTIZE, _DEQUANTIZE} or node.domain:
        return False
    has_zero_point = len(node.input) > 2 and node.input[2]
    return node.input[1] in constants and (not has_zero_point or node.input[2] in constants)


def _shift(model: onnx.ModelProto, shifted: set[str], constants: dict[str, onnx.TensorProto]) -> None:
    """Let nodes read and make the shifted tensors; convert where others read or make them."""
    graph = model.graph
    written, read = set[str](), set[str]()
    for node in graph.node:
        if _is_constant_quantizer(node, constants) and _quantized(node) in shifted:
            _shift_zero_point(graph, node, constants)
        for names, seen in ((node.input, read), (node.output, written)):
            for index, name in enumerate(names):
                if name in shifted and _takes_int8(node, name, constants):
                    names[index] = name + _SUFFIX
                    seen.add(name)
    _convert(graph, shifted, written, read, constants)


def _takes_int8(node: onnx.NodeProto, name: str, constants: dict[str, onnx.TensorProto]) -> bool:
    """Whether a node reads or makes the shifted tensor itself."""
    if node.op_type in {_QUANTIZE, _DEQUANTIZE}:
        return _is_constant_quantizer(node, constants) and _quantized(node) == name
    return node.op_type in _MOVERS and name in (*_data(node), *node.output[:1])


def _shift_zero_point(graph: onnx.GraphProto, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> None:
    """Give a node a zero point of int8."""
    old = node.input[2] if len(node.input) > 2 else ""
    value = numpy_helper.to_array(constants[old]) if old else np.zeros(_scale_shape(node, constants), np.uint8)
    name = f"{node.output[0]}/zero_point{_SUFFIX}"
    constants[name] = numpy_helper.from_array((value.astype(np.int16) - 128).astype(np.int8), name)
    graph.initializer.append(constants[name])
    node.input[:] = [*node.input[:2], name]
    for attribute in [a for a in node.attribute if a.name == "output_dtype"]:
        node.attribute.remove(attribute)


def _scale_shape(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> tuple[int, ...]:
    return tuple(constants[node.input[1]].dims) if node.input[1] in constants else ()


def _convert(
    graph: onnx.GraphProto,
    shifted: set[str],
    written: set[str],
    read: set[str],
    constants: dict[str, onnx.TensorProto],
) -> None:
    """Write the nodes between a tensor of uint8 and its shifted form."""
    old = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    before: list[onnx.NodeProto] = []
    for name in sorted(shifted):
        if name in read - written and name in constants:
            value = numpy_helper.to_array(constants[name]).astype(np.int16) - 128
            graph.initializer.append(numpy_helper.from_array(value.astype(np.int8), name + _SUFFIX))
        elif name in read - written:
            before.extend(_between(name, name + _SUFFIX, TensorProto.INT8, -128.0))
        elif name in written and name in old:
            before.extend(_between(name + _SUFFIX, name, TensorProto.UINT8, 128.0))
    _insert(graph, before)


def _between(source: str, target: str, kind: int, number: float) -> list[onnx.NodeProto]:
    """Return nodes that add a number to an 8-bit tensor. kind: the result's type."""
    value = helper.make_tensor("value", TensorProto.FLOAT, [], [number])
    names = [f"{target}/{part}" for part in ("offset", "float", "shifted")]
    return [
        helper.make_node("Constant", [], [names[0]], name=names[0], value=value),
        helper.make_node("Cast", [source], [names[1]], name=names[1], to=TensorProto.FLOAT),
        helper.make_node("Add", [names[1], names[0]], [names[2]], name=names[2]),
        helper.make_node("Cast", [names[2]], [target], name=f"{target}/cast", to=kind),
    ]


def _insert(graph: onnx.GraphProto, added: list[onnx.NodeProto]) -> None:
    """Add nodes and put all of them into an order in which what they read is made before."""
    waiting = [*graph.node, *added]
    there = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    makes = {name for node in waiting for name in node.output}
    ordered: list[onnx.NodeProto] = []
    while waiting:
        ready = [node for node in waiting if all(name in there or name not in makes for name in node.input)]
        ordered.extend(ready)
        there |= {name for node in ready for name in node.output}
        left = {id(node) for node in ready}
        waiting = [node for node in waiting if id(node) not in left]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(copies)


def _repeat_casts(graph: onnx.GraphProto) -> None:
    """Cast again where a cast to uint8 is handed on as it is."""
    casts = {node.output[0]: node for node in graph.node if casts_to_uint8(node)}
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in casts:
            cast = casts[node.input[0]]
            node.CopyFrom(helper.make_node("Cast", cast.input, node.output, node.name, to=TensorProto.UINT8))


def _widen_casts(model: onnx.ModelProto, tensors: set[str], knowledge: Knowledge) -> int:
    """Let values of uint8 that are made and cast again inside the model be int32; the model's outputs stay.

    A value from whole numbers wraps as a cast to uint8 does; one from numbers with a fraction is in range, or
    undefined.
    """
    outputs = {value.name for value in model.graph.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    count, added = 0, list[onnx.NodeProto]()
    for node in list(model.graph.node):
        name = node.output[0] if node.output else ""
        inside = [reader for reader in readers.get(name, []) if reader.op_type == "Cast"]
        if not casts_to_uint8(node) or name not in tensors or not inside:
            continue
        count += 1
        source = knowledge.fact(node.input[0])
        is_whole = source is None or not source.dtype.is_float
        added.extend(_wide_cast(node.input[0], f"{name}/int32", is_whole=is_whole))
        for reader in inside:
            reader.input[0] = f"{name}/int32"
        if name not in outputs and len(inside) == len(readers[name]):
            model.graph.node.remove(node)
    if added:
        _insert(model.graph, added)
    return count


def _wide_cast(source: str, target: str, *, is_whole: bool) -> list[onnx.NodeProto]:
    """Return nodes that cast to int32 what a cast to uint8 would make."""
    kind = TensorProto.INT32
    if not is_whole:
        return [helper.make_node("Cast", [source], [target], name=target, to=kind)]
    value = helper.make_tensor("value", kind, [], [256])
    names = [f"{target}/{part}" for part in ("size", "wide")]
    return [
        helper.make_node("Constant", [], [names[0]], name=names[0], value=value),
        helper.make_node("Cast", [source], [names[1]], name=names[1], to=kind),
        helper.make_node("Mod", [names[1], names[0]], [target], name=target),
    ]
