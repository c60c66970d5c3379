"""Calls of custom ops' functions, opened for a tool that takes ONNX's own operators only, and closed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import helper

from trtkit.network.custom_op import DOMAIN
from trtkit.network.onnx.function import placed

if TYPE_CHECKING:
    from collections.abc import Sequence


def open_calls(model: onnx.ModelProto) -> list[str]:
    """Put bodies in the place of calls, between identities at their borders; return the names of all these nodes.

    The functions stay in the model, without a call, so that `close_calls` finds them.
    """
    bodies = {function.name: function for function in model.functions if function.domain == DOMAIN}
    nodes, inside = [], []
    for node in model.graph.node:
        if node.domain != DOMAIN:
            nodes.append(node)
            continue
        opened = _opened(node, bodies[node.op_type])
        nodes += opened
        inside += [inner.name for inner in opened]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return inside


def close_calls(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Put the calls of `original` back, on the tensors that the borders of their bodies have in `model` now."""
    calls = [node for node in original.graph.node if node.domain == DOMAIN]
    by_name = {node.name: node for node in model.graph.node}
    for call in calls:
        closed = onnx.NodeProto()
        closed.CopyFrom(call)
        for place in range(len(call.input)):
            closed.input[place] = by_name[_border(call, "input", place)].input[0]
        for place in range(len(call.output)):
            closed.output[place] = by_name[_border(call, "output", place)].output[0]
        last = by_name[_border(call, "output", len(call.output) - 1)]
        last.CopyFrom(closed)
    inside = tuple(f"{call.name}/" for call in calls)
    kept = [node for node in model.graph.node if not (inside and node.name.startswith(inside))]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    _take_functions(model, original)


def _opened(node: onnx.NodeProto, body: onnx.FunctionProto) -> Sequence[onnx.NodeProto]:
    """Return a body with identities before its inputs and behind its outputs."""
    before = [_identity(node, "input", place, name) for place, name in enumerate(node.input)]
    after = [_identity(node, "output", place, name) for place, name in enumerate(node.output)]
    names = dict(zip(body.input, (border.output[0] for border in before), strict=False))
    names |= dict(zip(body.output, (border.input[0] for border in after), strict=False))
    return [*before, *(placed(inner, node.name, names) for inner in body.node), *after]


def _identity(node: onnx.NodeProto, side: str, place: int, tensor: str) -> onnx.NodeProto:
    name = _border(node, side, place)
    ends = (tensor, name) if side == "input" else (name, tensor)
    return helper.make_node("Identity", [ends[0]], [ends[1]], name=name)


def _border(node: onnx.NodeProto, side: str, place: int) -> str:
    return f"{node.name}/border/{side}_{place}"


def _take_functions(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Give a model the functions of another, and the domain that they are in."""
    del model.functions[:]
    model.functions.extend(original.functions)
    if model.functions and all(entry.domain != DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
