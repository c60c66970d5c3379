"""Weights by the names that TensorRT's ONNX parser gives their layers, for types its API may not hand out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_OPAQUE_TYPES = ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E8M0", "INT4", "FLOAT4E2M1")
_KERNEL_INPUTS = {1: "kernel", 2: "bias"}


def constants_from_onnx(model: Path | ModelProto) -> dict[str, Any]:
    """Return the bf16, fp8, int4 and fp4 weights of an ONNX model as `Options.constants`.

    The parser names a constant layer after its initializer or Constant node; kernel and bias of a convolution are
    found under the layer, which is named after the node, or `node_of_<output>` if it has no name.
    """
    import onnx

    loaded = onnx.load(str(model)) if isinstance(model, Path) else model
    tensors = {tensor.name: tensor for tensor in loaded.graph.initializer}
    for node in loaded.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            tensors[node.output[0]] = node.attribute[0].t
    opaque = {getattr(onnx.TensorProto, name) for name in _OPAQUE_TYPES}
    values = {name: onnx.numpy_helper.to_array(item) for name, item in tensors.items() if item.data_type in opaque}
    kernels = {key: values[name] for node in loaded.graph.node for key, name in _kernel_names(node) if name in values}
    return values | kernels


def _kernel_names(node: NodeProto) -> list[tuple[str, str]]:
    """Return the keys of a convolution's weights and the tensors they come from."""
    if node.op_type not in ("Conv", "ConvTranspose"):
        return []
    layer = node.name or f"node_of_{node.output[0]}"
    return [
        (f"{layer}/{_KERNEL_INPUTS[index]}", name) for index, name in enumerate(node.input) if index in _KERNEL_INPUTS
    ]
