"""Pools whose window holds the whole image: TensorRT limits a window's size, and these have none that matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.network.onnx.rewrites.writer import Writer


def whole_image(op_type: str) -> Callable[[Writer, Node], Written]:
    """Return how a pool over all there is becomes `op_type`. In EfficientNet a window has as many rows as channels."""

    def write(o: Writer, node: Node) -> Written:
        x, attributes = node.values[0], node.attributes
        is_padded = any(attributes.get("pads", ())) or attributes.get("auto_pad", "NOTSET") != "NOTSET"
        is_dilated = any(step != 1 for step in attributes.get("dilations", ()))
        if x is None or not attributes.get("ceil_mode") or is_padded or is_dilated or node.is_used(1):
            return None
        kernel = attributes["kernel_shape"]
        axes = zip(x.shape[2:], kernel, attributes.get("strides", [1] * len(kernel)), strict=True)
        is_whole = all(0 <= size <= edge < size + stride for size, edge, stride in axes)
        return [o.call(op_type, [x])] if is_whole else None

    return write


RULES = (
    Rule("", "AveragePool", whole_image("GlobalAveragePool")),
    Rule("", "MaxPool", whole_image("GlobalMaxPool")),
)
