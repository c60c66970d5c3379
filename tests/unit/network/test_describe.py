"""What a network is said to hold and to cost, against counts made by hand and published ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import helper

from tests.support import models
from trtkit.backends import Backend, load_backend
from trtkit.errors import NetworkError
from trtkit.network.describe import describe
from trtkit.network.onnx.parse import check_grid_samples, parse_onnx

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.network.record import NetworkRecord

Shapes = dict[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def backend() -> Backend:
    return load_backend("tensorrt_rtx")


def described(backend: Backend, folder: Path, model: onnx.ModelProto, shapes: Shapes) -> NetworkRecord:
    network = parse_onnx(backend, models.save(model, folder / "m.onnx"))
    return describe(backend, network.definition, shapes)


def test_convolution_and_gemm_cost_two_operations_a_multiply_add(backend: Backend, tmp_path: Path) -> None:
    record = described(backend, tmp_path, models.classifier(), {"images": (4, 3, 16, 16)})
    flops = {layer.type: layer.flops for layer in record.layers if layer.flops}
    assert flops["CONVOLUTION"] == 2 * 4 * 8 * 16 * 16 * 3 * 9
    assert flops["MATRIX_MULTIPLY"] == 2 * 4 * 8 * 5
    assert flops["ACTIVATION"] == 4 * 8 * 16 * 16
    conv = next(layer for layer in record.layers if layer.type == "CONVOLUTION")
    assert conv.weight_bytes == {"fp32": 8 * 3 * 9 * 4}
    assert conv.bytes_moved == 4 * (4 * 3 * 16 * 16 + 4 * 8 * 16 * 16 + 8 * 3 * 9)


def test_dynamic_shapes_are_told_as_unknown_and_stay_dynamic(backend: Backend, tmp_path: Path) -> None:
    network = parse_onnx(backend, models.save(models.classifier(), tmp_path / "m.onnx"))
    record = describe(backend, network.definition, {"images": (4, 3, 16, 16)})
    assert record.inputs[0].shape == (-1, 3, 16, 16)
    assert record.outputs[0].shape == (-1, 5)
    images = network.definition.get_input(0)
    assert tuple(images.shape) == (-1, 3, 16, 16)
    assert images.get_dimension_name(0) == "batch"
    again = describe(backend, network.definition, {"images": (8, 3, 16, 16)})
    assert again.totals().flops > record.totals().flops


@pytest.mark.parametrize(
    ("node", "shapes", "expected"),
    [
        (helper.make_node("Conv", ["x", "w"], ["y"], group=4), ((1, 8, 6, 6), (12, 2, 3, 3)), 2 * 12 * 16 * 2 * 9),
        (helper.make_node("ConvTranspose", ["x", "w"], ["y"]), ((1, 8, 6, 6), (8, 5, 3, 3)), 2 * 8 * 36 * 5 * 9),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), ((2, 7, 3), (3, 4)), 2 * 2 * 7 * 4 * 3),
        (helper.make_node("Einsum", ["x", "w"], ["y"], equation="bij,jk->bik"), ((2, 7, 3), (3, 4)), 2 * 2 * 7 * 3 * 4),
        (helper.make_node("Add", ["x", "w"], ["y"]), ((2, 7, 3), (3,)), 2 * 7 * 3),
        (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3]), ((1, 8, 6, 6), (1,)), 8 * 16 * 9),
        (helper.make_node("Transpose", ["x"], ["y"]), ((2, 7, 3), (1,)), 0),
    ],
)
def test_cost_of_one_layer_is_the_one_counted_by_hand(
    node: onnx.NodeProto,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    expected: int,
    backend: Backend,
    tmp_path: Path,
) -> None:
    x, w = shapes
    output = onnx.ValueInfoProto(name="y")
    model = models.model([node], [models.tensor("x", *x)], [output], [models.weights("w", *w)])
    model = onnx.shape_inference.infer_shapes(model)
    assert described(backend, tmp_path, model, {"x": x}).totals().flops == expected


def test_fp16_and_bf16_weights_take_two_bytes(backend: Backend, tmp_path: Path) -> None:
    for onnx_type, name in (("FLOAT16", "fp16"), ("BFLOAT16", "bf16")):
        weight = helper.make_tensor("w", onnx.TensorProto.DataType.Value(onnx_type), [3, 4], [1.0] * 12)
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        inputs, outputs = models.tensor("x", 2, 3, dtype=onnx_type), models.tensor("y", 2, 4, dtype=onnx_type)
        record = described(backend, tmp_path, models.model([node], [inputs], [outputs], [weight]), {"x": (2, 3)})
        assert record.totals().weight_bytes == {name: 24}
        assert record.inputs[0].dtype == name


def test_totals_are_sums_over_the_layers(backend: Backend, tmp_path: Path) -> None:
    record = described(backend, tmp_path, models.classifier(), {"images": (2, 3, 16, 16)})
    totals = record.to_json()["totals"]
    assert totals["layers"] == len(record.layers) == sum(totals["layers_by_type"].values())
    assert totals["flops"] == sum(layer.flops for layer in record.layers)
    assert totals["bytes_moved"] == sum(layer.bytes_moved for layer in record.layers)


@pytest.mark.parametrize(("mode", "opset"), [("bilinear", 16), ("nearest", 16), ("linear", 20), ("cubic", 20)])
def test_grid_sample_mode_is_compared_with_the_nodes(mode: str, opset: int, backend: Backend, tmp_path: Path) -> None:
    network = parse_onnx(backend, models.save(models.grid_sample(mode, opset), tmp_path / "m.onnx"))
    right = {"bilinear": "linear"}.get(mode, mode)
    check_grid_samples(backend, network, [("sample", right)])
    wrong = "nearest" if right != "nearest" else "linear"
    with pytest.raises(NetworkError) as caught:
        check_grid_samples(backend, network, [("sample", wrong)])
    assert str(caught.value) == (
        f"GridSample `sample`: TensorRT parsed mode `{wrong}` as `{right}`\nfix: export with opset 16 to 19"
    )


def test_attention_costs_two_products_and_a_softmax(backend: Backend, tmp_path: Path) -> None:
    B, N, S, T, H = 2, 4, 6, 10, 8
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    values = {"q": (B, N, S, H), "k": (B, N, T, H), "v": (B, N, T, H)}
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, shape) for name, shape in values.items()]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, (B, N, S, H))]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    record = described(backend, tmp_path, model, {})
    attention = sum(layer.flops for layer in record.layers if layer.type.startswith("ATTENTION"))
    assert attention == B * N * S * T * (4 * H + 5)
