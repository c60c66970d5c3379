from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from tests.support import models
from tests.unit.network.onnx.rewrites.ways import (
    RANDOM,
    Arrays,
    assert_all_agree,
    random_bytes,
    random_weights,
    scalars,
)
from trtkit.network.onnx.rewrites import rewrite
from trtkit.network.onnx.rewrites.rule import MICROSOFT

if TYPE_CHECKING:
    from pathlib import Path


def _ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_a_quantized_model_stays_in_int8_from_end_to_end() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        helper.make_node("QLinearConv", ["q", "s", "z", "w", "s", "wz", "s2", "z"], ["c"], "conv"),
        helper.make_node("MaxPool", ["c"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("QLinearMatMul", ["f", "s2", "z", "m", "s", "wz", "s3", "z3"], ["h"], "matmul"),
        helper.make_node("DequantizeLinear", ["h", "s3", "z3"], ["y"], "dequantize"),
    ]
    constants = [
        *scalars(s=(0.02, "float32"), s2=(0.6, "float32"), s3=(1.5, "float32"), z=(128, "uint8"), z3=(90, "uint8")),
        *scalars(wz=(0, "int8")),
        models.constant("w", random_weights(4, 3, 3, 3), "int8"),
        models.constant("m", random_weights(16, 5), "int8"),
    ]
    model = models.model(nodes, [models.tensor("x", "n", 3, 6, 6)], [models.tensor("y", "n", 5)], constants)
    x = RANDOM.standard_normal((2, 3, 6, 6)).astype(np.float32)
    said = assert_all_agree(model, {"x": x}, atol=2 * 1.5)
    assert said.startswith("1 QLinearConv, 1 QLinearMatMul, 5 uint8 tensor")
    new, _ = rewrite(model)
    kinds = {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in new.graph.initializer}
    assert "UINT8" not in kinds
    assert "Cast" not in _ops(new)


@pytest.mark.parametrize("has_zero_points", [False, True])
def test_integer_products_are_exact(has_zero_points: bool) -> None:
    conv = helper.make_node("ConvInteger", ["x", "w", *["xz", "wz"] * has_zero_points], ["c"], "c", pads=[1] * 4)
    product = helper.make_node("MatMulInteger", ["c8", "m", *["xz", "mz"] * has_zero_points], ["y"], "m")
    cast = helper.make_node("Cast", ["c"], ["c8"], "cast", to=onnx.TensorProto.UINT8)
    constants = [
        models.constant("w", random_weights(2, 3, 3, 3, dtype="uint8"), "uint8"),
        models.constant("m", random_weights(8, 5), "int8"),
        *scalars(xz=(37, "uint8"), wz=(129, "uint8")),
        models.constant("mz", [1, -2, 3, 4, 127], "int8"),
    ]
    outputs = [models.tensor("y", 1, 2, 7, 5, dtype="INT32")]
    model = models.model([conv, cast, product], [models.tensor("x", 1, 3, 7, 8, dtype="UINT8")], outputs, constants)
    assert_all_agree(model, {"x": random_bytes(1, 3, 7, 8)})


def test_dynamic_quantization_up_to_the_product() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantize"),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["whole"], "matmul"),
        helper.make_node("Cast", ["whole"], ["float"], "cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "s"], ["y"], "scale"),
    ]
    constants = [models.constant("w", random_weights(8, 5), "int8"), *scalars(wz=(0, "int8"))]
    model = models.model(nodes, [models.tensor("x", "n", 8)], [models.tensor("y", "n", 5)], constants, opset=11)
    x = RANDOM.standard_normal((3, 8)).astype(np.float32)
    said = assert_all_agree(model, {"x": x}, rtol=1e-5)
    assert said == "1 DynamicQuantizeLinear, 1 MatMulInteger, 2 Cast to uint8"


@pytest.mark.parametrize("op_type", ["MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
def test_products_with_scales(op_type: str) -> None:
    constants = [
        models.constant("w", random_weights(8, 5), "int8"),
        models.constant("ws", [0.1, 0.2, 0.3, 0.4, 0.5]),
        models.constant("wz", [0] * 5, "int8"),
        *scalars(xs=(0.05, "float32"), xz=(100, "uint8")),
        models.constant("b", [1, 2, 3, 4, 5]),
    ]
    is_dynamic = op_type == "DynamicQuantizeMatMul"
    names = ["x", "w", "ws", "wz", "b"] if is_dynamic else ["x", "w", "xs", "ws", "xz", "wz", "b"]
    x = RANDOM.standard_normal((3, 8)).astype(np.float32) if is_dynamic else random_bytes(3, 8)
    node = helper.make_node(op_type, names, ["y"], "n", domain=MICROSOFT)
    inputs = [models.tensor("x", 3, 8, dtype="FLOAT" if is_dynamic else "UINT8")]
    model = models.model([node], inputs, [models.tensor("y", 3, 5)], constants, domains=[MICROSOFT])
    assert_all_agree(model, {"x": x}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("axis", [None, 1])
def test_zero_points_of_q_and_dq(kind: str, axis: int | None) -> None:
    values = [13, 77, 100] if axis else 77
    scales = [0.1, 0.02, 0.5] if axis else 0.1
    along = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q", **along),
        helper.make_node("Reshape", ["q", "shape"], ["r"], "r"),
        helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"], "dq", **along),
    ]
    constants = [models.constant("s", scales), models.constant("z", values, kind),
                 models.constant("shape", [2, 3, 2, 2], "int64")]  # fmt: skip
    model = models.model(nodes, [models.tensor("x", 2, 3, 4)], [models.tensor("y", 2, 3, 2, 2)], constants)
    assert_all_agree(model, {"x": RANDOM.standard_normal((2, 3, 4)).astype(np.float32) * 3}, atol=1e-5)


@pytest.mark.parametrize("zero_point", [128, 3])
def test_weights_of_uint8(zero_point: int) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], "dq"),
        helper.make_node("MatMul", ["x", "f"], ["y"], "m"),
    ]
    constants = [models.constant("w", random_bytes(4, 5), "uint8")]
    constants += scalars(s=(0.1, "float32"), z=(zero_point, "uint8"))
    model = models.model(nodes, [models.tensor("x", "n", 4)], [models.tensor("y", "n", 5)], constants)
    assert_all_agree(model, {"x": RANDOM.standard_normal((3, 4)).astype(np.float32)}, atol=1e-3)


@pytest.mark.parametrize(("scale", "axis"), [(0.003, None), ([0.003], 0), ([0.1, 0.02, 0.5, 1e-4, 3], 0)])
def test_biases_of_int32(scale: float | list[float], axis: int | None) -> None:
    along = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("DequantizeLinear", ["b", "s", "z"], ["f"], "dq", **along),
        helper.make_node("Gemm", ["x", "w", "f"], ["y"], "g"),
    ]
    zeros = [0] * len(scale) if isinstance(scale, list) else 0
    constants = [models.constant("b", [2**31 - 1, -(2**31), 7, -123457, 0], "int32"), models.constant("s", scale)]
    constants += [models.constant("z", zeros, "int32"), models.constant("w", RANDOM.standard_normal((4, 5)))]
    model = models.model(nodes, [models.tensor("x", "n", 4)], [models.tensor("y", "n", 5)], constants)
    said = assert_all_agree(model, {"x": RANDOM.standard_normal((3, 4)).astype(np.float32)}, rtol=1e-6, atol=1e-5)
    assert said == "1 DequantizeLinear"


# In a process of its own: where ModelOpt has run, parts of ONNX Runtime's quantizer are ModelOpt's.
QUANTIZE = """\
import sys
import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

kind, is_per_channel = QuantType[sys.argv[1]], bool(int(sys.argv[2]))
samples = iter([{"images": np.load("x.npy")}])

class Samples(CalibrationDataReader):
    def get_next(self):
        return next(samples, None)

quantize_static("m.onnx", "q.onnx", Samples(), activation_type=kind, weight_type=QuantType.QInt8,
                per_channel=is_per_channel)
"""


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("is_per_channel", [False, True])
def test_models_that_onnx_runtime_quantizes(kind: QuantType, is_per_channel: bool, tmp_path: Path) -> None:
    """Its own quantizer writes biases as int32."""
    x = RANDOM.standard_normal((4, 3, 16, 16)).astype(np.float32)
    models.save(models.classifier(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", x)
    words = [sys.executable, "-c", QUANTIZE, kind.name, str(int(is_per_channel))]
    subprocess.run(words, cwd=tmp_path, check=True)
    model = onnx.load(tmp_path / "q.onnx")
    kinds = [tensor.data_type for tensor in model.graph.initializer if "bias_quantized" in tensor.name]
    assert onnx.TensorProto.INT32 in kinds
    steps = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "logits_scale"]
    assert "DequantizeLinear" in assert_all_agree(model, {"images": x}, atol=2.01 * steps[0])


def test_a_quantized_tensor_that_is_an_output_keeps_its_type() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dq"),
    ]
    outputs = [models.tensor("y", 2, 3), models.tensor("q", 2, 3, dtype="UINT8")]
    model = models.model(nodes, [models.tensor("x", 2, 3)], outputs, scalars(s=(0.1, "float32"), z=(77, "uint8")))
    feeds: Arrays = {"x": RANDOM.standard_normal((2, 3)).astype(np.float32)}
    assert_all_agree(model, feeds, atol=1e-5)


def test_a_model_without_refused_forms_is_left_alone() -> None:
    model = models.classifier()
    same, said = rewrite(model)
    assert said == "none"
    assert same is model


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_an_embedding_that_onnx_runtime_quantized_dynamically(kind: QuantType, tmp_path: Path) -> None:
    """What `optimum` writes as model_quantized.onnx: rows of an 8-bit table, dequantized after they are gathered."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="words"),
        helper.make_node("Gather", ["places", "ids"], ["placed"], name="places"),
        helper.make_node("Add", ["rows", "placed"], ["sum"], name="sum"),
        helper.make_node("MatMul", ["sum", "w"], ["y"], name="linear"),
    ]
    tables = [models.weights("table", 30, 16), models.weights("places", 30, 16, seed=1), models.weights("w", 16, 8)]
    ids = models.tensor("ids", "batch", 5, dtype="INT64")
    models.save(models.model(nodes, [ids], [models.tensor("y", "batch", 5, 8)], tables), tmp_path / "m.onnx")
    options = {"MatMulConstBOnly": True}
    quantize_dynamic(
        tmp_path / "m.onnx", tmp_path / "q.onnx", weight_type=kind, extra_options=options, reduce_range=True
    )
    model = onnx.load(tmp_path / "q.onnx")
    assert [node.op_type for node in model.graph.node].count("Gather") == 2
    said = assert_all_agree(model, {"ids": RANDOM.integers(0, 30, (2, 5))}, atol=1e-4)
    assert "2 Gather of 8 bits" in said
