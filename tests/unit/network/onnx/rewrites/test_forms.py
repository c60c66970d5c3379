from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import models
from tests.unit.network.onnx.rewrites.ways import assert_all_agree, in_tensorrt
from trtkit.errors import UnsupportedOperatorsError
from trtkit.network.onnx import function
from trtkit.network.onnx.rewrites import rewrite

RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def _one(
    node: onnx.NodeProto, inputs: dict[str, Any], constants: dict[str, Any], dtype: str = "FLOAT", opset: int = 20
) -> onnx.ModelProto:
    """A model of one node with output y. inputs: arrays, whose first axis the model does not know."""
    given = [
        models.tensor(name, *value.shape, dtype=TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(value.dtype)))
        for name, value in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", TensorProto.DataType.Value(dtype), None)
    kept = [models.constant(name, value, str(np.asarray(value).dtype)) for name, value in constants.items()]
    return models.model([node], given, [y], kept, opset=opset)


@pytest.mark.parametrize("name", ["And", "Or", "Xor"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_bitwise(name: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    a = RANDOM.integers(limits.min, limits.max, (4, 50), endpoint=True).astype(dtype)
    a[0, :4] = limits.min, limits.max, 0, -1
    b = RANDOM.integers(limits.min, limits.max, 50, endpoint=True).astype(dtype)
    node = helper.make_node(f"Bitwise{name}", ["a", "b"], ["y"], "n")
    model, _ = rewrite(_one(node, {"a": a, "b": b}, {}, dtype.upper()))
    wanted = getattr(np, f"bitwise_{name.lower()}")(a, b)
    np.testing.assert_array_equal(in_tensorrt(model, {"a": a, "b": b})[0], wanted)


def test_the_low_bits_are_the_rest_of_a_division() -> None:
    a = RANDOM.integers(-1000, 1000, (3, 20)).astype(np.int64)
    node = helper.make_node("BitwiseAnd", ["a", "mask"], ["y"], "n")
    model = _one(node, {"a": a}, {"mask": np.array(255)}, "INT64")
    assert_all_agree(model, {"a": a})
    assert [node.op_type for node in rewrite(model)[0].graph.node] == ["Constant", "Mod"]


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction: str) -> None:
    x, by = RANDOM.integers(0, 256, (2, 9)).astype(np.uint8), np.arange(9).astype(np.uint8) % 8
    node = helper.make_node("BitShift", ["x", "by"], ["y"], "n", direction=direction)
    assert_all_agree(_one(node, {"x": x, "by": by}, {}, "UINT8"), {"x": x, "by": by})


@pytest.mark.parametrize("kind", ["Average", "Max"])
def test_a_window_that_holds_the_whole_image(kind: str) -> None:
    x = _normal(2, 3, 7, 9)
    window = {"kernel_shape": [2560, 2560], "strides": [2560, 2560], "ceil_mode": 1}
    node = helper.make_node(f"{kind}Pool", ["x"], ["y"], "n", **window)
    assert assert_all_agree(_one(node, {"x": x}, {}), {"x": x}, atol=1e-6)


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [7, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [7, 9], "strides": [2, 2]},
        {"kernel_shape": [7, 9], "dilations": [2, 2], "strides": [9, 9], "ceil_mode": 1},
        {"kernel_shape": [7, 9], "pads": [1, 1, 1, 1], "strides": [4, 4], "ceil_mode": 1},
        {"kernel_shape": [9, 9], "strides": [2, 2], "ceil_mode": 1},
    ],
    ids=["part", "floor", "dilated", "padded", "nothing"],
)
def test_other_windows_stay(window: dict[str, Any]) -> None:
    model = _one(helper.make_node("MaxPool", ["x"], ["y"], "n", **window), {"x": _normal(2, 3, 7, 9)}, {})
    assert [node.op_type for node in rewrite(model)[0].graph.node] == ["MaxPool"]


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 5, 4), (2, 3, 2, 5, 4)])
def test_affine_grid(aligned: int, size: tuple[int, ...]) -> None:
    rank = len(size) - 2
    theta = _normal(2, rank, rank + 1)
    node = helper.make_node("AffineGrid", ["theta", "size"], ["y"], "n", align_corners=aligned)
    assert_all_agree(_one(node, {"theta": theta}, {"size": np.array(size)}), {"theta": theta}, atol=1e-5)


@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ((5, 6), (2, 3), {}),
        ((5, 6), (2, 3), {"strides": [2, 2], "pads": [1, 0, 1, 2]}),
        ((7, 6), (2, 2), {"dilations": [3, 1], "strides": [1, 2]}),
    ],
)
def test_col2im(image: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, Any]) -> None:
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    dilations = attributes.get("dilations", [1, 1])
    places = [
        (image[i] + pads[i] + pads[i + 2] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(2)
    ]
    x = _normal(2, 3 * block[0] * block[1], places[0] * places[1])
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"], "n", **attributes)
    model = _one(node, {"x": x}, {"image": np.array(image), "block": np.array(block)})
    assert_all_agree(model, {"x": x}, atol=1e-5)


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("is_constant", [False, True])
def test_scatter_nd(reduction: str, is_constant: bool) -> None:
    data, indices = _normal(4, 5, 3), np.array([[0, 1], [3, 4], [0, 1], [-1, 2], [0, 1]])
    updates = _normal(5, 3)
    feeds = {"data": data, "updates": updates} | ({} if is_constant else {"indices": indices})
    constants = {"indices": indices} if is_constant else {}
    node = helper.make_node("ScatterND", ["data", "indices", "updates"], ["y"], "n", reduction=reduction)
    assert_all_agree(_one(node, feeds, constants), feeds, atol=1e-5)


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter_elements(reduction: str, axis: int) -> None:
    data, updates = _normal(4, 5), _normal(3, 4)
    indices = RANDOM.integers(-4, 4, (3, 4))
    feeds = {"data": data, "indices": indices, "updates": updates}
    node = helper.make_node("ScatterElements", list(feeds), ["y"], "n", reduction=reduction, axis=axis)
    assert_all_agree(_one(node, feeds, {}), feeds, atol=1e-5)


@pytest.mark.parametrize("opset", [17, 20])
def test_layer_normalization_of_three_outputs(opset: int) -> None:
    x = _normal(2, 3, 8)
    node = helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["y", "mean", "inverse"], "n", axis=-1)
    model = _one(node, {"x": x}, {"scale": _normal(8), "bias": _normal(8)}, opset=opset)
    model.graph.output.extend([models.tensor("mean", 2, 3, 1), models.tensor("inverse", 2, 3, 1)])
    assert assert_all_agree(model, {"x": x}, atol=1e-5) == "1 LayerNormalization"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_determinant(size: int) -> None:
    x = _normal(2, size, size)
    assert_all_agree(_one(helper.make_node("Det", ["x"], ["y"], "n"), {"x": x}, {}), {"x": x}, atol=1e-5)


@pytest.mark.parametrize("shape", [(7, 4), (3, 10)])
def test_center_crop_pad(shape: tuple[int, int]) -> None:
    x = _normal(5, 6)
    node = helper.make_node("CenterCropPad", ["x", "shape"], ["y"], "n")
    assert_all_agree(_one(node, {"x": x}, {"shape": np.array(shape)}), {"x": x})


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumprod(exclusive: int, reverse: int) -> None:
    x = _normal(3, 6)
    node = helper.make_node("CumProd", ["x", "axis"], ["y"], "n", exclusive=exclusive, reverse=reverse)
    model, _ = rewrite(_one(node, {"x": x}, {"axis": np.array(1)}, opset=26))
    turned = x[:, ::-1] if reverse else x
    wanted = np.cumprod(np.concatenate([np.ones((3, 1), np.float32), turned[:, :-1]], 1) if exclusive else turned, 1)
    np.testing.assert_allclose(in_tensorrt(model, {"x": x})[0], wanted[:, ::-1] if reverse else wanted, rtol=1e-5)


def test_triangles_without_an_attribute_are_upper() -> None:
    x = _normal(4, 4)
    assert_all_agree(_one(helper.make_node("Trilu", ["x"], ["y"], "n"), {"x": x}, {}), {"x": x})


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_batch_first_recurrence(op_type: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    x = _normal(2, 5, 4)
    node = helper.make_node(op_type, ["x", "w", "r", "b"], ["y", "h"], "n", hidden_size=3, layout=1)
    constants = {"w": _normal(1, 3 * gates, 4), "r": _normal(1, 3 * gates, 3), "b": _normal(1, 6 * gates)}
    model = _one(node, {"x": x}, constants)
    wanted, _ = rewrite(model)
    flipped = _one(
        helper.make_node(op_type, ["x", "w", "r", "b"], ["y", "h"], "n", hidden_size=3),
        {"x": np.ascontiguousarray(x.transpose(1, 0, 2))}, constants,
    )  # fmt: skip
    made = in_tensorrt(flipped, {"x": np.ascontiguousarray(x.transpose(1, 0, 2))})[0]  # ORT has no layout=1
    np.testing.assert_allclose(in_tensorrt(wanted, {"x": x})[0], made.transpose(2, 0, 1, 3), atol=1e-6)


def test_attention_with_a_past_is_taken_apart() -> None:
    q, k, v = _normal(1, 4, 2, 8), _normal(1, 2, 2, 8), _normal(1, 2, 2, 8)
    past = {"pk": _normal(1, 2, 3, 8), "pv": _normal(1, 2, 3, 8)}
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "nk", "nv"], "n", is_causal=1)
    feeds = {"q": q, "k": k, "v": v} | past
    model = _one(node, feeds, {}, opset=23)
    model.graph.output.extend([models.tensor(name, 1, 2, 5, 8) for name in ("nk", "nv")])
    assert assert_all_agree(model, feeds, atol=1e-5) == "1 Attention"


def test_exact_arithmetic_is_left_in_fp32() -> None:
    a = RANDOM.integers(0, 9, (2, 3)).astype(np.int32)
    node = helper.make_node("BitwiseOr", ["a", "a"], ["y"], "n")
    model, _ = rewrite(_one(node, {"a": a}, {}, "INT32"))
    assert set(function.fp32_nodes(model)) == {node.name for node in model.graph.node}


def test_a_node_inside_a_local_function_is_rewritten() -> None:
    body = helper.make_node("BitwiseNot", ["a"], ["b"], "inner")
    function = helper.make_function("own", "Flip", ["a"], ["b"], [body], [helper.make_opsetid("", 18)])
    a = RANDOM.integers(-9, 9, (2, 3)).astype(np.int32)
    model = _one(helper.make_node("Flip", ["a"], ["y"], "n", domain="own"), {"a": a}, {}, "INT32", 18)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert_all_agree(model, {"a": a})


@pytest.mark.parametrize(
    ("node", "inputs", "constants", "said"),
    [
        (helper.make_node("Det", ["x"], ["y"], "n"), {"x": np.zeros((2, 5, 5), np.float32)}, {},
         "Det `n`: matrices of 5 x 5, allowed: 1 x 1 to 4 x 4"),
        (helper.make_node("Col2Im", ["x", "i", "b"], ["y"], "n"), {"x": np.zeros((1, 9, 9), np.float32)},
         {"i": np.array([11]), "b": np.array([3])},
         "Col2Im `n`: input 2 (`block_shape`) is [3], allowed: 2 or 3 sizes"),
        (helper.make_node("Col2Im", ["x", "i", "b"], ["y"], "n"),
         {"x": np.zeros((1, 9, 9), np.float32), "i": np.zeros(2, np.int64), "b": np.zeros(2, np.int64)}, {},
         "Col2Im `n`: input 1 (`image_shape`) must be a constant"),
        (helper.make_node("ScatterND", ["x", "i", "u"], ["y"], "n", reduction="add"),
         {"x": np.zeros((10000,), np.float32), "i": np.zeros((10000, 1), np.int64), "u": np.zeros(10000, np.float32)},
         {}, "ScatterND `n`: reduction `add` of 10000 updates at 10000 places takes a mask of 100000000 elements, "
         "allowed: 67108864"),
        (helper.make_node("BitwiseNot", ["x"], ["y"], "n"), {"x": np.zeros(3, np.uint32)}, {},
         "BitwiseNot `n`: type and rank of input 0 (`x`) must be known, the type one of TensorRT's"),
    ],
)  # fmt: skip
def test_what_has_no_form_says_why(
    node: onnx.NodeProto, inputs: dict[str, Any], constants: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedOperatorsError) as refused:
        rewrite(_one(node, inputs, constants))
    assert str(refused.value).splitlines()[1].strip() == said


def test_a_constant_that_is_still_computed_may_come_with_folding() -> None:
    nodes = [
        helper.make_node("Concat", ["a", "a"], ["image"], axis=0),
        helper.make_node("Col2Im", ["x", "image", "b"], ["y"], "n"),
    ]
    constants = [models.constant("a", [5], "int64"), models.constant("b", [2, 2], "int64")]
    model = models.model(nodes, [models.tensor("x", 1, 4, 16)], [models.tensor("y", 1, 1, 5, 5)], constants, opset=18)
    same, said = rewrite(model, is_final=False)
    assert said == "none"
    assert same is model


@pytest.mark.parametrize("equation", ["BHWc,BHCc->BHWC", "bA,Ac->bc", "...A,Ab->...b"])
def test_einsum_with_capital_letters(equation: str) -> None:
    shapes = {
        "BHWc,BHCc->BHWC": ((2, 3, 4, 5), (2, 3, 6, 5)),
        "bA,Ac->bc": ((2, 5), (5, 3)),
        "...A,Ab->...b": ((2, 3, 5), (5, 4)),
    }
    a, b = (_normal(*shape) for shape in shapes[equation])
    node = helper.make_node("Einsum", ["a", "b"], ["y"], "n", equation=equation)
    assert assert_all_agree(_one(node, {"a": a, "b": b}, {}), {"a": a, "b": b}, atol=1e-5) == "1 Einsum"


def test_an_einsum_with_more_labels_than_small_letters_is_refused() -> None:
    labels = "abcdefghijklmnopqrstuvwxyzA"
    node = helper.make_node("Einsum", ["a"], ["y"], "n", equation=f"{labels}->{labels}")
    with pytest.raises(UnsupportedOperatorsError, match="has 27 labels; TensorRT takes the 26 small letters"):
        rewrite(_one(node, {"a": np.zeros((1,) * 27, np.float32)}, {}))
