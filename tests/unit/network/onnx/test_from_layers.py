"""Networks as ONNX: types of constants, large weights, blocks of scales, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from tests.support.onnx_oracle import session
from trtkit.dtypes import BF16, BOOL, DTYPES, FP32, INT8, DType
from trtkit.errors import ProblemsError
from trtkit.network.layer_graph import LayerGraph, LayerNode, LayerWeights, TensorSpec
from trtkit.network.onnx.from_layers import onnx_model, write_onnx

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MATRIX = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)


def weights(array: Any, dtype: DType = FP32, count: int | None = None) -> dict[str, LayerWeights]:
    return {"weights": LayerWeights(dtype, np.ascontiguousarray(array).reshape(-1).view(np.uint8), count or array.size)}


def constant(slot: int, shape: tuple[int, ...], held: dict[str, LayerWeights]) -> LayerNode:
    return LayerNode("CONSTANT", f"c{slot}", (), (slot,), {"shape": shape}, held)


def graph(
    nodes: list[LayerNode], specs: Sequence[tuple[str, DType, tuple[int, ...] | None]], inputs: int = 0
) -> LayerGraph:
    """Return a network whose first tensors are inputs and whose last is its output."""
    tensors = [TensorSpec(slot, name, dtype, False, shape) for slot, (name, dtype, shape) in enumerate(specs, 1)]
    return LayerGraph(tuple(nodes), (None, *tensors), tuple(range(1, inputs + 1)), (len(specs),))


def product(**more: Any) -> LayerGraph:
    """Return x @ m @ m, whose second matrix is a constant with the memory of the first."""
    options = {"op0": "NONE", "op1": "NONE"}
    held = weights(MATRIX)
    nodes = [
        constant(2, (32, 32), held),
        constant(3, (32, 32), held),
        LayerNode("MATRIX_MULTIPLY", "first", (1, 2), (4,), options),
        LayerNode("MATRIX_MULTIPLY", "second", (4, 3), (5,), options),
    ]
    sizes = [("x", (-1, 32)), ("m1", (32, 32)), ("m2", (32, 32)), ("h", (-1, 32)), ("y", (-1, 32))]
    return graph(nodes, [(name, FP32, shape) for name, shape in sizes], 1)


def test_large_weights_lie_in_a_file_of_their_own_once(tmp_path: Path) -> None:
    x = np.ones((3, 32), np.float32)
    assert write_onnx(product(), tmp_path / "whole.onnx") == (tmp_path / "whole.onnx",)
    assert write_onnx(product(), tmp_path / "m.onnx", inline_bytes=1000) == (
        tmp_path / "m.onnx",
        tmp_path / "m.onnx.data",
    )
    assert (tmp_path / "m.onnx.data").read_bytes() == MATRIX.tobytes()
    for name in ("whole", "m"):
        (got,) = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx").run(None, {"x": x})
        np.testing.assert_allclose(got, x @ MATRIX @ MATRIX, rtol=1e-4, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data", "whole.onnx"]


def test_layers_may_be_listed_in_any_order() -> None:
    ordered = product()
    shuffled = LayerGraph(ordered.nodes[::-1], ordered.specs, ordered.inputs, ordered.outputs)
    model, _ = onnx_model(shuffled)
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8", "fp4", "int4", "int8", "uint8", "int64", "bool"])
def test_constants_keep_their_type(name: str) -> None:
    dtype = DTYPES[name]
    values = np.array([0, 1, 1, 0, 1] if name == "bool" else [0, 1, 2, 3, 6])
    array = values.astype(getattr(ml_dtypes, dtype.numpy, None) or dtype.numpy)
    raw = array.view(np.uint8)
    if dtype.bits == 4:  # two a byte, low nibble first, by ml_dtypes' one a byte
        low, high = np.append(raw & 15, 0).reshape(-1, 2).T
        raw = (low | high << 4).astype(np.uint8)
    model, _ = onnx_model(graph([constant(1, (5,), weights(raw, dtype, 5))], [("c", dtype, (5,))]))
    onnx.checker.check_model(model, full_check=True)
    (tensor,) = model.graph.initializer
    assert tensor.data_type == getattr(onnx.TensorProto, dtype.onnx)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(np.float32), values.astype(np.float32))


@pytest.mark.parametrize("scale_shape", [(1,), (6,), (4, 1), (1, 6), (2, 6), (4, 3), (2, 3), (2, 2)])
def test_scales_of_blocks_along_any_axes(scale_shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(1)
    data = generator.integers(-128, 128, (4, 6)).astype(np.int8)
    scale = generator.uniform(0.5, 2, scale_shape).astype(np.float32)
    nodes = [
        constant(1, (4, 6), weights(data, INT8)),
        constant(2, scale_shape, weights(scale)),
        LayerNode("DEQUANTIZE", "dequantize", (1, 2), (3,), {"axis": 1}),
    ]
    specs = [("q", INT8, (4, 6)), ("scale", FP32, scale_shape), ("y", FP32, (4, 6))]
    (got,) = session(onnx_model(graph(nodes, specs))[0]).run(None, {})
    spread = scale
    if len(scale_shape) == 2:
        for axis, size in enumerate((4, 6)):
            spread = np.repeat(spread, size // scale_shape[axis], axis)
    np.testing.assert_array_equal(got, data * spread)


@pytest.mark.parametrize("x", [[7.0, -7.0, 1.0, 6.0, -6.0, 0.0], [7, -7, 1, 6, -6, 0]])
def test_floor_division_rounds_down(x: list[float]) -> None:
    dtype = FP32 if isinstance(x[0], float) else DTYPES["int32"]
    y = [2, 2, -3, -3, 4, 5]
    shape = [("x", dtype, (6,)), ("y", dtype, (6,)), ("z", dtype, (6,))]
    network = graph([LayerNode("ELEMENTWISE", "divide", (1, 2), (3,), {"op": "FLOOR_DIV"})], shape, 2)
    feed = {"x": np.array(x, dtype.numpy), "y": np.array(y, dtype.numpy)}
    (got,) = session(onnx_model(network)[0]).run(None, feed)
    np.testing.assert_array_equal(got, np.floor_divide(feed["x"], feed["y"]))


def test_numbers_win_over_nan_and_casts_stay_in_range() -> None:
    shape = (4,)
    nodes = [
        LayerNode("ELEMENTWISE", "larger", (1, 2), (3,), {"op": "MAX"}),
        LayerNode("CAST", "whole", (3,), (4,), {"to_type": "INT8"}),
    ]
    names = [("x", FP32), ("y", FP32), ("larger", FP32), ("whole", INT8)]
    model, _ = onnx_model(graph(nodes, [(name, dtype, shape) for name, dtype in names], 2))
    x, y = np.array([[np.nan, 1, 300.7, -300], [2.7, np.nan, 0, -200]], np.float32)
    np.testing.assert_array_equal(session(model).run(None, {"x": x, "y": y})[0], [2, 1, 127, -128])


def test_every_kind_that_onnx_lacks_is_named_once() -> None:
    nodes = [
        LayerNode("MOE", "experts", (1,), (2,)),
        LayerNode("MOE", "more_experts", (2,), (3,)),
        LayerNode("PLUGIN_V3", "swin", (3,), (4,)),
        LayerNode("GATHER", "pick", (1, 4), (5,), {"axis": 2, "num_elementwise_dims": 1, "mode": "DEFAULT"}),
    ]
    specs: list[tuple[str, DType, tuple[int, ...] | None]] = [(f"t{slot}", FP32, (2, 3, 4)) for slot in range(1, 6)]
    with pytest.raises(ProblemsError) as caught:
        onnx_model(graph(nodes, specs, 1))
    assert str(caught.value).splitlines() == [
        "ONNX cannot express some layers of this network; the first of each kind:",
        "  layer `experts`: MOE: ONNX has no operator for a mixture of experts",
        "  layer `swin`: PLUGIN_V3: ONNX has no such operator",
        "  layer `pick`: GATHER: ONNX gathers batches along the first axis after theirs only",
        "fix: `trtkit verify BUNDLE` compares the network, without ONNX",
    ]


def test_tensors_of_one_name_are_told_apart() -> None:
    nodes = [LayerNode("UNARY", "a", (1,), (2,), {"op": "NOT"}), LayerNode("UNARY", "b", (2,), (3,), {"op": "NOT"})]
    model, _ = onnx_model(graph(nodes, [("x", BOOL, (2,)), ("t", BOOL, (2,)), ("t", BOOL, (2,))], 1))
    onnx.checker.check_model(model, full_check=True)
    assert [node.output[0] for node in model.graph.node] == ["t#2", "t"]


def test_bf16_is_computed_in_fp32_where_onnx_takes_none() -> None:
    nodes = [LayerNode("EINSUM", "sum", (1, 2), (3,), {"equation": "ij,jk->ik"})]
    model, _ = onnx_model(graph(nodes, [(name, BF16, (2, 2)) for name in ("a", "b", "c")], 2))
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Cast", "Cast", "Einsum", "Cast"]


@pytest.mark.parametrize("name", ["fp8", "e8m0", "fp4", "int4"])
def test_types_that_onnx_only_stores_are_joined_in_a_wider_one(name: str) -> None:
    dtype = DTYPES[name]
    nodes = [
        LayerNode("CONCATENATION", "join", (1, 2), (3,), {"axis": 0}),
        LayerNode("KV_CACHE_UPDATE", "update", (3, 3, 4), (5,), {"update_form": "PADDED_BHND"}),
    ]
    shape = (1, 1, 2, 2)
    specs: list[tuple[str, DType, tuple[int, ...]]] = [
        ("a", dtype, shape),
        ("b", dtype, shape),
        ("joined", dtype, (2, 1, 2, 2)),
    ]
    specs += [("start", DTYPES["int32"], (2,)), ("y", dtype, (2, 1, 2, 2))]
    tensors = [TensorSpec(slot, name, dtype, False, shape) for slot, (name, dtype, shape) in enumerate(specs, 1)]
    model, _ = onnx_model(LayerGraph(tuple(nodes), (None, *tensors), (1, 2, 4), (5,)))
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Cast", "Cast", "Concat", "Cast", "KVCacheUpdate"]


def test_aligned_corners_are_those_of_whole_sizes() -> None:
    options: dict[str, Any] = {"resize_mode": "LINEAR", "coordinate_transformation": "ALIGN_CORNERS", "shape": None}
    options |= {"selector_for_single_pixel": "FORMULA", "nearest_rounding": "FLOOR", "exclude_outside": False}
    options |= {"cubic_coeff": -0.75, "scales": (1.0, 1.0, 0.6, 0.8)}
    x = np.random.default_rng(2).standard_normal((1, 1, 4, 6)).astype(np.float32)
    for shape in ((1, 1, 4, 6), (1, 1, -1, -1)):
        specs = [("x", FP32, shape), ("y", FP32, (1, 1, -1, -1))]
        model, _ = onnx_model(graph([LayerNode("RESIZE", "r", (1,), (2,), options)], specs, 1))
        want = torch.nn.functional.interpolate(torch.from_numpy(x), (2, 4), mode="bilinear", align_corners=True)
        programs: tuple[Any, ...] = (session(model), ReferenceEvaluator(model))
        for program in programs:  # which read a corner by scales differently
            (got,) = program.run(None, {"x": x})
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)
