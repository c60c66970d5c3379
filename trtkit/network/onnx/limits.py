"""How large a model may become: by functions' bodies that take the place of their calls, by sizes that it states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.network.onnx.care import all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

MAX_NODES = 1_000_000
# ONNX's shape inference and onnxslim follow each element of a vector: 40 bytes and more for one.
MAX_VECTOR = 2**24
_Key = tuple[str, str]


def check_size(model: onnx.ModelProto, where: str) -> None:
    """Refuse functions that call themselves, or whose calls of calls make a graph of more than MAX_NODES nodes.

    Thirty functions that call the one before twice are a gigabyte of nodes. Raises SourceError.
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
    """Refuse inputs of one axis and more than MAX_VECTOR elements. Raises SourceError."""
    for value in model.graph.input:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if len(sizes) == 1 and sizes[0] > MAX_VECTOR:
            what = f"input `{value.name}` is a vector of {sizes[0]} elements, at most {MAX_VECTOR} are taken"
            raise SourceError(what, where, "export the model with its real sizes")


def _measure(key: _Key, bodies: dict[_Key, onnx.FunctionProto], sizes: dict[_Key, int], where: str) -> None:
    """Note the nodes of a function's body and of all that it calls, callees first."""
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
