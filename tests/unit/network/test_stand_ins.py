"""A network whose inputs are quantized by block while running is described as any other, and stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.unit.network.ops.evaluate import backend
from trtkit.dtypes import FP32
from trtkit.network.blocks.quantized import QuantizedLinears
from trtkit.network.describe import describe
from trtkit.network.graph import Graph
from trtkit.network.layer_graph import read_layers
from trtkit.network.ops.arithmetic import absolute
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix
from trtkit.reference.executor import Executor

ROWS, COLUMNS, TOKENS = 48, 64, 5
if TYPE_CHECKING:
    from trtkit.network.record import NetworkRecord


def matrix(kind: str) -> QuantizedMatrix:
    import ml_dtypes

    generator = np.random.default_rng(0)
    if kind == "fp4":
        scales = np.ones((ROWS, COLUMNS // 16), ml_dtypes.float8_e4m3fn)
        codes = generator.integers(0, 255, (ROWS, COLUMNS // 2), np.uint8)
        return QuantizedMatrix("fp4", codes, scales, inputs=QuantizedInputs("fp4", 0.01))
    codes = generator.standard_normal((ROWS, COLUMNS)).astype(ml_dtypes.float8_e4m3fn)
    scales = np.ones((ROWS, COLUMNS // 32), ml_dtypes.float8_e8m0fnu)
    return QuantizedMatrix("mxfp8", codes, scales, inputs=QuantizedInputs("mxfp8"))


def written(kind: str) -> Graph:
    """Return a network of two products of the same inputs, and what follows one of them."""
    graph = Graph(backend())
    x = graph.input("x", FP32, (-1, -1, COLUMNS))
    linears = QuantizedLinears(graph, FP32)
    graph.output(absolute(linears.linear(x, matrix(kind))), "y")
    graph.output(linears.linear(x, matrix(kind)), "z")
    return graph


def described(graph: Graph) -> NetworkRecord:
    return describe(graph.backend, graph.network, {"x": (2, TOKENS, COLUMNS)})


def outputs(graph: Graph) -> list[torch.Tensor]:
    x = torch.randn(2, TOKENS, COLUMNS, generator=torch.Generator().manual_seed(0))
    return list(Executor(read_layers(graph.backend, graph.network, graph.constants)).run({"x": x}).values())


@pytest.mark.parametrize("kind", ["fp4", "mxfp8"])
def test_every_layer_has_its_shape_and_its_work(kind: str) -> None:
    graph = written(kind)
    before = outputs(graph)
    record = described(graph)
    assert all(min(tensor.shape, default=0) >= 0 for layer in record.layers for tensor in layer.outputs)
    products = [layer for layer in record.layers if layer.type == "MATRIX_MULTIPLY"]
    assert [layer.flops for layer in products] == [2 * 2 * TOKENS * ROWS * COLUMNS] * 2
    made = {tensor.name for layer in record.layers for tensor in layer.outputs} | {"x"}
    assert all(tensor.name in made for layer in record.layers for tensor in layer.inputs)
    assert {layer.inputs[0].name for layer in products} == {
        "input/dequantize_1" if kind == "fp4" else "input/dequantize"
    }
    assert described(graph) == record
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(graph), strict=True))
