"""Writes a small radiance field to ONNX, with `FourierFeatures` as a single node of a custom domain."""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BANDS, HIDDEN, COLOUR = 6, 64, 4
generator = np.random.default_rng(0)


def weight(name: str, rows: int, columns: int) -> onnx.TensorProto:
    """Return a random matrix."""
    values = generator.standard_normal((rows, columns)) * (2 / rows) ** 0.5
    return numpy_helper.from_array(values.astype(np.float32), name)


nodes = [
    helper.make_node("FourierFeatures", ["points"], ["features"], "encode", domain="acme", bands=BANDS),
    helper.make_node("MatMul", ["features", "w1"], ["hidden"], "hidden"),
    helper.make_node("Relu", ["hidden"], ["active"], "active"),
    helper.make_node("MatMul", ["active", "w2"], ["rgba"], "rgba"),
]
graph = helper.make_graph(
    nodes,
    "radiance",
    [helper.make_tensor_value_info("points", TensorProto.FLOAT, ["n", 3])],
    [helper.make_tensor_value_info("rgba", TensorProto.FLOAT, ["n", COLOUR])],
    [weight("w1", 3 * (1 + 2 * BANDS), HIDDEN), weight("w2", HIDDEN, COLOUR)],
)
imports = [helper.make_opsetid("", 20), helper.make_opsetid("acme", 1)]
onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), sys.argv[1])
