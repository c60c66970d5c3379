"""What single layers move, against counts made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtkit.backends import load_backend
from trtkit.network.describe import describe
from trtkit.network.onnx.parse import parse_onnx
from trtkit.planning.count_network import group_of
from trtkit.planning.traffic import NetworkCost, network_cost

if TYPE_CHECKING:
    from pathlib import Path


def cost_of(folder: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], shape: tuple[int, ...]):
    """Return the cost of a network from `x` to `y`."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(model, folder / "m.onnx")
    backend = load_backend("tensorrt_rtx")
    network = parse_onnx(backend, folder / "m.onnx")
    return network_cost(describe(backend, network.definition, {}), group_of)


def test_a_product_moves_operands_weights_and_result(tmp_path: Path) -> None:
    weight = np.ones((8, 5), np.float32)
    cost: NetworkCost = cost_of(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, (3, 8))
    group = cost.groups["matrix products"]
    assert group.products == {"fp32": 2 * 3 * 8 * 5}
    assert group.weight_bytes == 4 * 40
    assert group.bytes == cost.fused_bytes == 4 * (3 * 8 + 8 * 5 + 3 * 5)


def test_what_lies_between_layers_is_alive_and_not_moved_when_fused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["n"])]
    nodes.append(helper.make_node("Add", ["h", "n"], ["y"]))
    cost = cost_of(tmp_path, nodes, {}, (4, 16))
    assert cost.fused_bytes == 2 * 4 * 64
    assert max(cost.alive_bytes) == 3 * 4 * 64  # h and n, and y made of both
    assert sum(group.bytes for group in cost.groups.values()) == (2 + 2 + 3) * 4 * 64


def test_a_table_is_read_by_row(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32)]
    nodes.append(helper.make_node("Gather", ["table", "i"], ["y"]))
    cost = cost_of(tmp_path, nodes, {"table": np.ones((1000, 16), np.float32)}, (3,))
    rows = 4 * 3 * 16
    assert cost.fused_bytes == 4 * 3 + rows + rows  # ids, rows read, rows given
    assert cost.groups["moves"].weight_bytes == 0


def test_dequantized_weights_are_read_as_they_are_stored(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["y"]),
    ]
    constants = {"w": np.ones((8, 5), np.int8), "s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    group = cost_of(tmp_path, nodes, constants, (3, 8)).groups["matrix products"]
    assert dict(group.products) == {"int8": 2 * 3 * 8 * 5}
    assert 40 <= group.weight_bytes <= 50  # one byte each, and the scale
