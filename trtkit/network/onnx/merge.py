"""Put several ONNX models into one: TensorRT parses one into a network, and only into an empty one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx


def prefixed(model: onnx.ModelProto, prefix: str) -> onnx.ModelProto:
    """Return `model` with `prefix` before all names but those of its inputs and outputs."""
    from onnx import compose

    return compose.add_prefix(model, prefix, rename_inputs=False, rename_outputs=False)


def merged(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Return one model of several in the order that they run in.

    A tensor of the same name is the same tensor: an output of one that is an input of another stays an output too.
    The models have one opset, and inner names of their own.
    """
    import onnx

    result = onnx.ModelProto()
    result.CopyFrom(models[0])
    for model in models[1:]:
        outputs = {value.name for value in result.graph.output}
        known = {value.name for value in result.graph.input}
        result.graph.node.extend(model.graph.node)
        result.graph.initializer.extend(model.graph.initializer)
        result.graph.value_info.extend(model.graph.value_info)
        result.graph.output.extend(model.graph.output)
        result.graph.input.extend(value for value in model.graph.input if value.name not in outputs | known)
        result.functions.extend(model.functions)
    return result
