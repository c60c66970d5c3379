"""Operators of the form QLinear*: quantized inputs, quantized outputs."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import helper

from tests.support import models
from tests.unit.network.onnx.rewrites.ways import assert_all_agree, random_bytes, random_weights, scalars
from trtkit.errors import UnsupportedOperatorsError
from trtkit.network.onnx.rewrites import rewrite
from trtkit.network.onnx.rewrites.rule import MICROSOFT


@pytest.mark.parametrize(("kind", "zero_point"), [("uint8", 77), ("int8", -5), ("uint8", 128), ("uint8", 0)])
@pytest.mark.parametrize("opset", [10, 17])
def test_qlinear_conv(kind: str, zero_point: int, opset: int) -> None:
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    node = helper.make_node("QLinearConv", names, ["y"], "conv", pads=[1, 0, 1, 2], strides=[2, 1])
    constants = [
        *scalars(xs=(0.02, "float32"), xz=(zero_point, kind), ys=(0.11, "float32"), yz=(zero_point, kind)),
        models.constant("w", random_weights(4, 3, 3, 3), "int8"),
        models.constant("ws", [0.01, 0.02, 0.005, 0.03]),
        models.constant("wz", [0, 0, 0, 0], "int8"),
        models.constant("b", [100, -2000, 5, 0], "int32"),
    ]
    inputs = [models.tensor("x", 2, 3, 9, 8, dtype=kind.upper())]
    outputs = [models.tensor("y", 2, 4, 4, 8, dtype=kind.upper())]
    model = models.model([node], inputs, outputs, constants, opset=opset)
    said = assert_all_agree(model, {"x": random_bytes(2, 3, 9, 8, dtype=kind)}, atol=1)
    assert said.startswith("1 QLinearConv")


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("QLinearAdd", {}), ("QLinearMul", {})],
)
def test_qlinear_binary(op_type: str, attributes: dict[str, Any]) -> None:
    names = ["a", "as", "az", "b", "bs", "bz", "cs", "cz"]
    node = helper.make_node(op_type, names, ["c"], "n", domain=MICROSOFT, **attributes)
    constants = scalars(**{"as": (0.02, "float32"), "az": (120, "uint8"), "bs": (0.05, "float32"),
                            "bz": (3, "uint8"), "cs": (0.07, "float32"), "cz": (100, "uint8")})  # fmt: skip
    inputs = [models.tensor("a", 2, 5, dtype="UINT8"), models.tensor("b", 5, dtype="UINT8")]
    model = models.model([node], inputs, [models.tensor("c", 2, 5, dtype="UINT8")], constants, domains=[MICROSOFT])
    assert_all_agree(model, {"a": random_bytes(2, 5), "b": random_bytes(5)}, atol=1)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.1}),
        ("QLinearSoftmax", {"axis": 1, "opset": 13}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("QLinearGlobalAveragePool", {"channels_last": 0}),
    ],
)
def test_qlinear_unary(op_type: str, attributes: dict[str, Any]) -> None:
    node = helper.make_node(op_type, ["x", "xs", "xz", "ys", "yz"], ["y"], "n", domain=MICROSOFT, **attributes)
    constants = scalars(xs=(0.05, "float32"), xz=(111, "uint8"), ys=(0.02, "float32"), yz=(10, "uint8"))
    size = {"QLinearAveragePool": 3, "QLinearGlobalAveragePool": 1}.get(op_type, 6)
    outputs = [models.tensor("y", 1, 4, size, size, dtype="UINT8")]
    model = models.model([node], [models.tensor("x", 1, 4, 6, 6, dtype="UINT8")], outputs, constants,
                         domains=[MICROSOFT])  # fmt: skip
    assert_all_agree(model, {"x": random_bytes(1, 4, 6, 6)}, atol=1)


def test_qlinear_concat() -> None:
    names = ["ys", "yz", "a", "as", "az", "b", "bs", "bz"]
    node = helper.make_node("QLinearConcat", names, ["y"], "n", domain=MICROSOFT, axis=1)
    constants = scalars(**{"as": (0.02, "float32"), "az": (120, "uint8"), "bs": (0.05, "float32"),
                            "bz": (3, "uint8"), "ys": (0.05, "float32"), "yz": (40, "uint8")})  # fmt: skip
    inputs = [models.tensor("a", 2, 5, dtype="UINT8"), models.tensor("b", 2, 3, dtype="UINT8")]
    model = models.model([node], inputs, [models.tensor("y", 2, 8, dtype="UINT8")], constants, domains=[MICROSOFT])
    assert_all_agree(model, {"a": random_bytes(2, 5), "b": random_bytes(2, 3)}, atol=1)


@pytest.mark.parametrize("has_bias", [False, True])
def test_qgemm(has_bias: bool) -> None:
    names = ["a", "as", "az", "b", "bs", "bz", "c" if has_bias else "", "ys", "yz"]
    node = helper.make_node("QGemm", names, ["y"], "n", domain=MICROSOFT, transB=1, alpha=1.0)
    constants = [
        *scalars(
            **{
                "as": (0.02, "float32"),
                "az": (120, "uint8"),
                "bs": (0.05, "float32"),
                "bz": (0, "int8"),
                "ys": (0.9, "float32"),
                "yz": (140, "uint8"),
            }
        ),
        models.constant("b", random_weights(3, 8), "int8"),
        models.constant("c", [300, -400, 20], "int32"),
    ]
    outputs = [models.tensor("y", 4, 3, dtype="UINT8")]
    model = models.model([node], [models.tensor("a", 4, 8, dtype="UINT8")], outputs, constants, domains=[MICROSOFT])
    assert_all_agree(model, {"a": random_bytes(4, 8)}, atol=1)


@pytest.mark.parametrize(
    ("op_type", "attributes", "said"),
    [
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "channels_last": 1},
         "com.microsoft::QLinearAveragePool `n`: attribute `channels_last` is `1`, allowed: `0`"),
        ("QLinearSigmoid", {"speed": 2},
         "com.microsoft::QLinearSigmoid `n`: unknown attribute `speed` = `2`, known: channels_last, opset"),
    ],
)  # fmt: skip
def test_attributes_that_cannot_be_taken(op_type: str, attributes: dict[str, Any], said: str) -> None:
    node = helper.make_node(op_type, ["x", "xs", "xz", "ys", "yz"], ["y"], "n", domain=MICROSOFT, **attributes)
    constants = scalars(xs=(0.05, "float32"), xz=(111, "uint8"), ys=(0.02, "float32"), yz=(10, "uint8"))
    shape = (1, 4, 6, 6)
    model = models.model([node], [models.tensor("x", *shape, dtype="UINT8")],
                         [models.tensor("y", *shape, dtype="UINT8")], constants, domains=[MICROSOFT])  # fmt: skip
    with pytest.raises(UnsupportedOperatorsError) as refused:
        rewrite(model)
    assert str(refused.value) == (f"TensorRT does not take 1 node, and there is no other way to write them\n  {said}")
