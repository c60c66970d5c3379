from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.support import custom_op_models
from trtkit.errors import UnsupportedOperatorsError
from trtkit.network.onnx import custom_ops, function

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.random.default_rng(0).standard_normal((2, 6, 9, 7)).astype(np.float32)


def _run(model: onnx.ModelProto) -> np.ndarray[Any, Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    found: list[np.ndarray[Any, Any]] = onnxruntime.InferenceSession(model.SerializeToString(), options).run(
        None, {"x": X}
    )
    return found[0]


def _mmcv_as_onnx() -> np.ndarray[Any, Any]:
    """Compute the mmcv chain by ONNX's DeformConv, with the same weights."""
    model = custom_op_models.mmcv_deform_conv()
    for node in model.graph.node:
        if node.domain == "mmcv":
            x, offset, mask, weight = node.input
            inputs = [x, weight, offset, "", mask]
            node.CopyFrom(helper.make_node("DeformConv", inputs, node.output, node.name, pads=[1] * 4))
    model.opset_import[0].version = 19
    return _run(model)


@pytest.mark.parametrize("opset", [19, 20, 22])
def test_deform_conv_becomes_functions_that_compute_the_same(opset: int) -> None:
    model = custom_op_models.deform_conv(opset=opset)
    replaced, said = custom_ops.replace(model)
    assert said == "2 DeformConv2d from DeformConv"
    assert [node.op_type for node in replaced.graph.node if node.domain == "trtkit"] == ["DeformConv2d"] * 2
    assert [function.name for function in replaced.functions] == ["DeformConv2d"]  # both nodes share it
    onnx.checker.check_model(replaced, full_check=True)
    np.testing.assert_allclose(_run(replaced), _run(model), atol=1e-5)
    function.inline(replaced)
    assert not replaced.functions
    onnx.checker.check_model(replaced, full_check=True)
    np.testing.assert_allclose(_run(replaced), _run(model), atol=1e-5)


def test_inlined_nodes_are_named_by_the_node_they_come_from() -> None:
    model, _ = custom_ops.lower(custom_op_models.deform_conv())
    names = [node.name for node in model.graph.node]
    assert "layer1/dcn/fp32/grid_sample" in names
    assert "layer1/dcn/mat_mul" in names
    assert len(set(names)) == len(names)


def test_sampling_is_what_stays_in_fp32() -> None:
    model, _ = custom_ops.lower(custom_op_models.deform_conv(1))
    kept = set(function.fp32_nodes(model))
    cast = {node.op_type for node in model.graph.node if node.name not in kept}
    assert cast == {"Conv", "Sigmoid", "Relu", "MatMul", "Reshape", "Constant"}


def test_mmcv_at_opset_11_is_lifted_and_its_shapes_carried_on() -> None:
    model = custom_op_models.mmcv_deform_conv()
    replaced, said = custom_ops.replace(model)
    assert said == "2 DeformConv2d from mmcv::MMCVModulatedDeformConv2d"
    assert len(replaced.functions) == 1  # the second layer's input is as well known as the first one's
    known = {value.name: value for value in replaced.graph.value_info}
    assert [dim.dim_value for dim in known["y1"].type.tensor_type.shape.dim] == [0, 6, 9, 7]


def test_mmcv_computes_what_deform_conv_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_op_models, "_generator", np.random.default_rng(7))
    want = _mmcv_as_onnx()
    monkeypatch.setattr(custom_op_models, "_generator", np.random.default_rng(7))
    model, _ = custom_ops.lower(custom_op_models.mmcv_deform_conv())
    np.testing.assert_allclose(_run(model), want, atol=1e-5)


def test_a_model_without_foreign_nodes_is_left_alone() -> None:
    model = custom_op_models.deform_conv(0)
    assert custom_ops.replace(model) == (model, "none")


def test_all_nodes_that_cannot_be_taken_are_told_at_once() -> None:
    model = custom_op_models.mmcv_deform_conv(layers=2, deform_groups=4, with_bias=1)
    with pytest.raises(UnsupportedOperatorsError) as refused:
        custom_ops.replace(model)
    known = "deform_groups, dilation, groups, padding, stride"
    assert str(refused.value) == (
        "trtkit cannot take 2 nodes\n"
        f"  mmcv::MMCVModulatedDeformConv2d `layer0/dcn`: unknown attribute `with_bias` = `1`, known: {known}\n"
        f"  mmcv::MMCVModulatedDeformConv2d `layer1/dcn`: unknown attribute `with_bias` = `1`, known: {known}"
    )


def test_sizes_that_do_not_fit_are_told() -> None:
    model = custom_op_models.mmcv_deform_conv(layers=1, deform_groups=4)
    with pytest.raises(UnsupportedOperatorsError, match=r"`layer0/dcn`: 18 channels of `offset`, 72 wanted"):
        custom_ops.replace(model)


def _in_a_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model inside both branches of an If."""
    graph = model.graph
    branches = []
    for name in ("then", "else"):
        branch = onnx.GraphProto(name=name, node=graph.node)
        for node in branch.node:
            node.output[0] = f"{name}_{node.output[0]}"
            for place, tensor in enumerate(node.input):
                if any(f"{name}_{tensor}" in other.output for other in branch.node):
                    node.input[place] = f"{name}_{tensor}"
        branch.output.append(helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, ["N", 6, 9, 7]))
        branches.append(branch)
    condition = helper.make_node("Constant", [], ["c"], "c", value=helper.make_tensor("c", TensorProto.BOOL, [], [1]))
    choice = helper.make_node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    del graph.node[:]
    graph.node.extend([condition, choice])
    return model


def _in_a_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with all of it inside a local function."""
    names = [tensor.name for tensor in model.graph.initializer]
    function = helper.make_function("own", "All", ["x", *names], ["y"], model.graph.node, model.opset_import)
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("All", ["x", *names], ["y"], "all", domain="own"))
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


@pytest.mark.parametrize("hide", [_in_a_branch, _in_a_function])
def test_foreign_nodes_are_found_in_branches_and_functions(hide: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    plain = custom_op_models.deform_conv(1)
    hidden = onnx.ModelProto()
    hidden.CopyFrom(plain)
    model, said = custom_ops.lower(hide(hidden))
    assert "DeformConv2d from DeformConv" in said
    np.testing.assert_allclose(_run(model), _run(plain), atol=1e-5)


@pytest.mark.parametrize("opset", [20, 22])
def test_a_volumes_grid_sample_is_taken_and_an_images_stays(opset: int) -> None:
    shapes = {"x": ["N", 2, 3, 4, 5], "g": ["N", 2, 3, 4, 3], "i": ["N", 2, 4, 5], "j": ["N", 3, 3, 2]}
    nodes = [
        helper.make_node("GridSample", ["x", "g"], ["y"], "volume", mode="linear", padding_mode="border"),
        helper.make_node("GridSample", ["i", "j"], ["z"], "image", mode="cubic"),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    generator = np.random.default_rng(0)
    feed = {name: generator.uniform(-1.2, 1.2, [2, *shape[1:]]).astype(np.float32) for name, shape in shapes.items()}
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for form in ("native", "planes", "gather"):
        replaced, said = custom_ops.replace(model, form=form)
        assert said == "1 GridSample3d from GridSample" + (f"; form {form}" if form != "native" else "")
        made = onnxruntime.InferenceSession(replaced.SerializeToString()).run(None, feed)
        for have, expected in zip(made, want, strict=True):
            np.testing.assert_allclose(have, expected, atol=1e-5)
