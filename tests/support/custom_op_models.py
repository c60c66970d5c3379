"""ONNX models with DeformConv, which TensorRT lacks: ONNX's and mmcv's nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_generator = np.random.default_rng(0)


def deform_conv(layers: int = 2, opset: int = 19, channels: int = 6, **attributes: Any) -> onnx.ModelProto:
    """Return a chain of layers: convolutions compute offsets and mask for a DeformConv."""
    chain = _Model()
    x = "x"
    for layer in range(layers):
        offset, mask = chain.offsets(x, channels, layer)
        weight = chain.weight(f"w{layer}", channels, channels, 3, 3)
        node = helper.make_node(
            "DeformConv", [x, weight, offset, "", mask], [f"y{layer}"], f"layer{layer}/dcn", pads=[1] * 4, **attributes
        )
        x = chain.add(node)
    return chain.model(x, channels, {"": opset})


def mmcv_deform_conv(layers: int = 2, opset: int = 11, channels: int = 6, **attributes: Any) -> onnx.ModelProto:
    """Return the same chain with mmcv's node, whose output shape ONNX cannot infer."""
    chain = _Model()
    x = "x"
    convolution = {
        "stride": [1, 1],
        "padding": [1, 1],
        "dilation": [1, 1],
        "groups": 1,
        "deform_groups": 1,
    } | attributes
    for layer in range(layers):
        offset, mask = chain.offsets(x, channels, layer)
        weight = chain.weight(f"w{layer}", channels, channels, 3, 3)
        inputs = [x, offset, mask, weight]
        name = f"layer{layer}/dcn"
        node = helper.make_node("MMCVModulatedDeformConv2d", inputs, [f"y{layer}"], name, domain="mmcv", **convolution)
        x = chain.add(node)
    return chain.model(x, channels, {"": opset, "mmcv": 1})


class _Model:
    """Nodes and weights of a model under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, node: onnx.NodeProto) -> str:
        self.nodes.append(node)
        return str(node.output[0])

    def weight(self, name: str, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        self.weights.append(
            numpy_helper.from_array((_generator.standard_normal(shape) * scale).astype(np.float32), name)
        )
        return name

    def offsets(self, x: str, channels: int, layer: int) -> tuple[str, str]:
        """Add the convolutions that compute offsets and mask."""
        convolutions = []
        for name, count in (("offset", 18), ("mask", 9)):
            inputs = [x, self.weight(f"{name}_w{layer}", count, channels, 3, 3)]
            convolutions.append(
                self.add(helper.make_node("Conv", inputs, [f"{name}{layer}"], f"layer{layer}/{name}", pads=[1] * 4))
            )
        return convolutions[0], self.add(
            helper.make_node("Sigmoid", [convolutions[1]], [f"m{layer}"], f"layer{layer}/sigmoid")
        )

    def model(self, output: str, channels: int, opsets: dict[str, int]) -> onnx.ModelProto:
        """Return the model: x [N, channels, 9, 7] -> y of the same shape."""
        self.add(helper.make_node("Relu", [output], ["y"], "relu"))
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", channels, 9, 7]) for name in ("x", "y")]
        graph = helper.make_graph(self.nodes, "g", values[:1], values[1:], self.weights)
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)
