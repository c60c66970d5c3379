"""Quantized tensors in TensorRT's form: int8, not uint8; no zero points; tables dequantized before lookups."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtkit.dtypes import FP32, INT8, INT32, UINT8
from trtkit.network.foreign import NotYetKnownError
from trtkit.network.onnx.facts import Knowledge
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.rule import Writer

# Nodes that move elements of their first input (all inputs of Concat), whatever their values.
_MOVERS = {
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool",
    "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_SUFFIX = "/int8"


@dataclass
class _Flow:
    """uint8 tensors of a graph. group: links tensors that hold the same kind of values to one of them."""

    graph: onnx.GraphProto
    tensors: set[str]
    group: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """Return the representative of all tensors that `name` is moved from or to."""
        while self.group.get(name, name) != name:
            name = self.group[name]
        return name

    def join(self, names: list[str]) -> None:
        """Merge the groups of tensors."""
        for name in names:
            self.group[self.root(name)] = self.root(names[0])


def shift_uint8(model: onnx.ModelProto) -> Counter[str]:
    """Replace quantized uint8 tensors of the main graph, in place; return what was done.

    Tensors between QuantizeLinear and DequantizeLinear, also through nodes that only move elements, hold x - 128
    instead, with zero points lower by 128. Other uint8 tensors inside the model become int32.
    """
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
    """Return the quantized tensor of a node; "" if its scale or zero point is left to arithmetic."""
    return node.output[0] if node.op_type == _QUANTIZE else node.input[0]


def casts_to_uint8(node: onnx.NodeProto) -> bool:
    """Whether a node casts another type to uint8."""
    return node.op_type == "Cast" and any(a.name == "to" and a.i == TensorProto.UINT8 for a in node.attribute)


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return initializers and Constant nodes by tensor name."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constants[node.output[0]] = attribute.t
    return constants


def _is_constant_quantizer(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    """Whether a node quantizes or dequantizes with a constant zero point or none; others become arithmetic."""
    if node.op_type not in {_QUANTIZE, _DEQUANTIZE} or node.domain:
        return False
    has_zero_point = len(node.input) > 2 and node.input[2]
    return node.input[1] in constants and (not has_zero_point or node.input[2] in constants)


def _shift(model: onnx.ModelProto, shifted: set[str], constants: dict[str, onnx.TensorProto]) -> None:
    """Make nodes read and write the shifted tensors; insert conversions for all other nodes."""
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
    """Whether a node reads or writes the shifted tensor directly."""
    if node.op_type in {_QUANTIZE, _DEQUANTIZE}:
        return _is_constant_quantizer(node, constants) and _quantized(node) == name
    return node.op_type in _MOVERS and name in (*_data(node), *node.output[:1])


def _shift_zero_point(graph: onnx.GraphProto, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> None:
    """Convert a node's zero point to int8."""
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
    """Insert conversions between a uint8 tensor and its shifted form."""
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
    """Add nodes and sort all topologically."""
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
    """Repeat a cast wherever a cast to uint8 is passed on unchanged."""
    casts = {node.output[0]: node for node in graph.node if casts_to_uint8(node)}
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in casts:
            cast = casts[node.input[0]]
            node.CopyFrom(helper.make_node("Cast", cast.input, node.output, node.name, to=TensorProto.UINT8))


def _widen_casts(model: onnx.ModelProto, tensors: set[str], knowledge: Knowledge) -> int:
    """Turn uint8 values that are made and cast again inside the model into int32; the model's outputs stay.

    Values from integers wrap like a cast to uint8; values from floats are in range, or undefined.
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


_RANGES = {INT8: (-128.0, 127.0), UINT8: (0.0, 255.0)}


def quantize(o: Writer, node: Node) -> Written:
    """Write QuantizeLinear without a zero point.

    A constant zero point z and scale s become arithmetic on values: Q(x) = round(x / s + z) = Q0(x + z s), DQ(q) =
    DQ0(q) - z s, so that TensorRT's own layers stay. Ties may round to the other side: results are within one
    quantization step. Computed ones are written as arithmetic, exactly as ONNX defines them. So is DequantizeLinear of
    int32, which TensorRT rejects: if it is constant, the bias of a quantized layer, it is replaced by its values.
    """
    if not _is_ours(node, 2):
        return None
    x, scale, zero_point = node.x(0), node.x(1), node.x(2)
    if zero_point.dtype == UINT8 and node.known(1) and node.known(2):
        return None  # becomes int8 first
    along = _Along(o, x, node.number("axis", 1), node.number("block_size", 0))
    if not (node.known(1) and node.known(2)):
        return [_quantized_by_arithmetic(along, scale, node)]
    shift = along.spread(_product(o, node))
    zeros = o.constant(np.zeros(zero_point.shape, np.int8))
    return [o.call("QuantizeLinear", [x + o.cast(shift, x.dtype), scale, zeros], **along.attributes)]


def dequantize(o: Writer, node: Node) -> Written:
    """Write DequantizeLinear without a zero point."""
    if node.fact(0) is not None and node.x(0).dtype == INT32:
        return [_dequantized_int32(o, node)]
    if not _is_ours(node, 2):
        return None
    x, scale, zero_point = node.x(0), node.x(1), node.x(2)
    if zero_point.dtype == UINT8 and node.known(1) and node.known(2):
        return None
    along = _Along(o, x, node.number("axis", 1), node.number("block_size", 0))
    whole = _whole_weights(o, node, along)
    zeros = o.constant(np.zeros(zero_point.shape, np.int8))
    if whole is not None:
        return [o.call("DequantizeLinear", [whole, scale, zeros], **along.attributes)]
    if not (node.known(1) and node.known(2)):
        shifted = node.whole(o, 0) - along.spread(node.whole(o, 2))
        return [o.cast(shifted * along.spread(o.cast(scale, FP32)), scale.dtype)]
    shift = along.spread(_product(o, node))
    return [o.call("DequantizeLinear", [x, scale, zeros], **along.attributes) - o.cast(shift, scale.dtype)]


def _dequantized_int32(o: Writer, node: Node) -> OnnxValue:
    """Return int32 times scale, in fp32 as ONNX Runtime has it. Its zero point is 0, ONNX allows no other."""
    values, scale, axis = node.constants[0], node.constants[1], node.number("axis", 1)
    if values is None or scale is None:
        return o.cast(o.cast(node.x(0), FP32) * o.along(node.x(1), axis, len(node.x(0).shape)), node.x(1).dtype)
    sizes = [1] * values.ndim
    if scale.size > 1:
        sizes[axis] = -1
    product = values.astype(np.float32) * scale.astype(np.float32).reshape(sizes)
    return o.cast(o.constant(product), node.x(1).dtype)


def _is_ours(node: Node, index: int) -> bool:
    """Whether a node has an int8 or uint8 zero point that is not known to be zero, or a computed scale with one."""
    zero_point = node.values[index] if index < len(node.inputs) else None
    if zero_point is None or zero_point.dtype not in _RANGES or node.values[0] is None:
        return False
    value = node.constants[index]
    if value is None or zero_point.dtype == UINT8:
        return True
    return bool(np.any(value)) or not node.known(1)


@dataclass(frozen=True)
class _Along:
    """How scales and zero points apply to x: a single one, one per index of an axis, or one per block."""

    o: Writer
    x: OnnxValue
    axis: int
    block: int

    @property
    def attributes(self) -> dict[str, int]:
        """ONNX's attributes for it."""
        return {"axis": self.axis} | ({"block_size": self.block} if self.block else {})

    def spread(self, value: OnnxValue) -> OnnxValue:
        """Return scales or zero points in a shape that broadcasts with x."""
        if not self.block:
            return self.o.along(value, self.axis, len(self.x.shape))
        axis, size = self.axis % len(value.shape), self.x.shape[self.axis]
        if -1 in value.shape or size < 0:
            raise NotYetKnownError("the shape must be known if each block has its own zero point")
        dims = [*value.shape[: axis + 1], self.block, *value.shape[axis + 1 :]]
        repeated = self.o.expand(self.o.unsqueeze(value, axis + 1), dims)
        merged = [*value.shape[:axis], value.shape[axis] * self.block, *value.shape[axis + 1 :]]
        return self.o.take(self.o.reshape(repeated, merged), axis, 0, size)


def _product(o: Writer, node: Node) -> OnnxValue:
    """Return zero point times scale, computed in fp64."""
    scale, zero_point = node.constants[1], node.constants[2]
    assert scale is not None
    assert zero_point is not None
    return o.constant((scale.astype(np.float64) * zero_point).astype(np.float32))


def _whole_weights(o: Writer, node: Node, along: _Along) -> OnnxValue | None:
    """Return constant weights minus their zero points if the result fits int8."""
    weights, zero_point = node.constants[0], node.constants[2]
    if weights is None or zero_point is None or along.block:
        return None
    if zero_point.ndim:
        sizes = [1] * weights.ndim
        sizes[along.axis] = -1
        zero_point = zero_point.reshape(sizes if zero_point.size > 1 else ())
    shifted = weights.astype(np.int32) - zero_point.astype(np.int32)
    fits = shifted.size == 0 or (shifted.min() >= -128 and shifted.max() <= 127)
    return o.constant(shifted.astype(np.int8)) if fits else None


def _quantized_by_arithmetic(along: _Along, scale: OnnxValue, node: Node) -> OnnxValue:
    o, zero_point = along.o, node.x(2)
    steps = o.unary("round", o.cast(along.x, FP32) / along.spread(o.cast(scale, FP32)))
    shifted = steps + along.spread(node.whole(o, 2))
    return o.cast(o.clip(shifted, *_RANGES[zero_point.dtype]), zero_point.dtype)


RULES = (Rule("", "QuantizeLinear", quantize), Rule("", "DequantizeLinear", dequantize))


_EIGHT_BITS = {TensorProto.INT8, TensorProto.UINT8}


def dequantize_tables(model: onnx.ModelProto) -> Counter[str]:
    """Swap `Gather` followed by `DequantizeLinear`, in place; return how many.

    The table has a single scale, as in ONNX Runtime's dynamic quantization; it stays in 8 bits in the engine.
    """
    constants = constants_of(model.graph)
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in model.graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {value.name for value in model.graph.output}
    gathers = {
        node.output[0]: node
        for node in model.graph.node
        if node.op_type == "Gather"
        and node.input[0] in constants
        and constants[node.input[0]].data_type in _EIGHT_BITS
        and node.output[0] not in outputs
        and all(_has_one_scale(reader, constants) for reader in readers[node.output[0]])
    }
    if not gathers:
        return Counter()
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in gathers:
            nodes.extend(_swapped(gathers[node.input[0]], node))
        elif node.op_type != "Gather" or node.output[0] not in gathers:
            nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return Counter({"Gather of 8 bits": len(gathers)})


def _has_one_scale(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    """Whether a node dequantizes a whole tensor with one constant scale."""
    scale = constants.get(node.input[1]) if node.op_type == "DequantizeLinear" else None
    return scale is not None and all(size == 1 for size in scale.dims)


def _swapped(gather: onnx.NodeProto, dequantize: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the table's DequantizeLinear and a Gather of its rows, with the output of `dequantize`."""
    table = f"{dequantize.output[0]}/table"
    widened = onnx.NodeProto.FromString(dequantize.SerializeToString())
    widened.input[0], widened.output[0] = gather.input[0], table
    axis = next((attribute.i for attribute in gather.attribute if attribute.name == "axis"), 0)
    inputs, outputs = [table, gather.input[1]], [dequantize.output[0]]
    return [widened, helper.make_node("Gather", inputs, outputs, name=gather.name, axis=axis)]
