"""Nodes that TensorRT's parser accepts, but with another meaning than ONNX's."""

from __future__ import annotations

from string import ascii_lowercase
from typing import TYPE_CHECKING

from trtkit.dtypes import INT8, INT32, UINT8
from trtkit.network.foreign import Refusal
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.rule import Writer


def trilu(o: Writer, node: Node) -> Written:
    """Write Trilu's default, the upper triangle, explicitly: the parser takes the lower one."""
    if "upper" in node.attributes:
        return None
    inputs = [value for value in node.values if value is not None]
    return [o.call("Trilu", inputs, upper=1)]


def space_to_depth(o: Writer, node: Node) -> Written:
    """Write the order of columns first, `mode=CRD`, which the parser ignores."""
    mode, size = node.only("mode", ("DCR", "CRD"), "DCR"), node.number("blocksize")
    if mode == "DCR":
        return None
    x = node.x(0)
    channels, height, width = (o.size(x, axis) for axis in (1, 2, 3))
    rows, columns = (_divided(o, length, size) for length in (height, width))
    blocks = o.reshape(x, [-1, channels, rows, size, columns, size])
    return [o.reshape(o.transpose(blocks, (0, 1, 3, 5, 2, 4)), [-1, x.shape[1] * size * size, rows, columns])]


def _divided(o: Writer, length: int | OnnxValue, size: int) -> int | OnnxValue:
    return length // size if isinstance(length, int) else o.binary("div", length, size)


def recurrent(op_type: str) -> Callable[[Writer, Node], Written]:
    """Return how `layout=1`, batch first, is written: the parser ignores it."""

    def write(o: Writer, node: Node) -> Written:
        if not node.number("layout", 0):
            return None
        kept = {name: value for name, value in node.attributes.items() if name != "layout"}
        inputs = [o.transpose(value, (1, 0, 2)) if index in {0, 5, 6} and value is not None else value
                 for index, value in enumerate(node.values)]  # fmt: skip
        outputs = o.calls(op_type, inputs, len(node.outputs), **kept)
        order = [(2, 0, 1, 3), *[(1, 0, 2)] * 2]
        return [
            o.transpose(value, order[index]) if node.is_used(index) else None for index, value in enumerate(outputs)
        ]

    return write


def one_hot(o: Writer, node: Node) -> Written:
    """Write OneHot as a comparison: the parser misreads negative indices and those out of range."""
    depth = node.constants[1]
    if depth is None or node.values[0] is None or node.values[2] is None:
        return None
    size, axis = int(depth.reshape(())), node.number("axis", -1)
    rank = len(node.x(0).shape) + 1
    axis %= rank
    indices = o.cast(node.x(0), INT32)
    indices = o.unsqueeze(o.select(indices < 0, indices + size, indices), axis)
    line = o.reshape(o.arange(size, INT32), [size if index == axis else 1 for index in range(rank)])
    off, on = (o.squeeze(o.take(node.x(2), 0, index, 1), 0) for index in (0, 1))
    return [o.select(o.binary("eq", indices, line), on, off)]


def mod(o: Writer, node: Node) -> Written:
    """Write the remainder of floats with the divisor's sign, which newer opsets allow."""
    x = node.values[0]
    if node.number("fmod", 0) or x is None or not x.dtype.is_float:
        return None
    return [x - o.unary("floor", x / node.x(1)) * node.x(1)]


def clip(o: Writer, node: Node) -> Written:
    """Write the limits of 8-bit integers in int32."""
    x = node.values[0]
    if x is None or x.dtype not in {INT8, UINT8}:
        return None
    wide = o.cast(x, INT32)
    for index, name in ((1, "max"), (2, "min")):
        limit = node.optional(index)
        wide = wide if limit is None else o.binary(name, wide, o.cast(limit, INT32))
    return [o.cast(wide, x.dtype)]


def einsum(o: Writer, node: Node) -> Written:
    """Write labels in lower case: the parser refuses others."""
    equation = node.attributes["equation"].decode()
    labels = {label for label in equation if label.isalpha()}
    if all(label.islower() for label in labels):
        return None
    if len(labels) > len(ascii_lowercase):
        raise Refusal(f"`{equation}` has {len(labels)} labels; TensorRT takes the {len(ascii_lowercase)} small letters")
    free = iter(sorted(set(ascii_lowercase) - labels))
    small = {label: label if label.islower() else next(free) for label in sorted(labels)}
    inputs = [node.x(index) for index in range(len(node.inputs))]
    return [o.call("Einsum", inputs, equation=equation.translate(str.maketrans(small)))]


RULES = (
    Rule("", "Einsum", einsum),
    Rule("", "Trilu", trilu),
    Rule("", "SpaceToDepth", space_to_depth),
    Rule("", "RNN", recurrent("RNN")),
    Rule("", "GRU", recurrent("GRU")),
    Rule("", "LSTM", recurrent("LSTM")),
    Rule("", "OneHot", one_hot),
    Rule("", "Mod", mod),
    Rule("", "Clip", clip),
)
