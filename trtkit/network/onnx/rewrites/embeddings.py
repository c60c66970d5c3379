"""Rows of an 8-bit table: TensorRT takes 8-bit constants only if they are dequantized first."""

from __future__ import annotations

from collections import Counter, defaultdict

import onnx
from onnx import TensorProto, helper

from trtkit.network.onnx.rewrites.uint8 import constants_of

_EIGHT_BITS = {TensorProto.INT8, TensorProto.UINT8}


def dequantize_tables(model: onnx.ModelProto) -> Counter[str]:
    """Write `Gather` then `DequantizeLinear` the other way round, in place; return how many.

    The table is one scale's, as ONNX Runtime's dynamic quantization makes it; it stays in 8 bits in the engine.
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
    """Return the table's DequantizeLinear and a Gather of its rows, which makes what `dequantize` made."""
    table = f"{dequantize.output[0]}/table"
    widened = onnx.NodeProto.FromString(dequantize.SerializeToString())
    widened.input[0], widened.output[0] = gather.input[0], table
    axis = next((attribute.i for attribute in gather.attribute if attribute.name == "axis"), 0)
    inputs, outputs = [table, gather.input[1]], [dequantize.output[0]]
    return [widened, helper.make_node("Gather", inputs, outputs, name=gather.name, axis=axis)]
