from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from onnx import helper

from tests.support import models
from trtkit.errors import SourceError
from trtkit.network.onnx import care
from trtkit.network.onnx.io import OnnxTensorSpec, graph_inputs


def test_checker_counts_nodes_and_names_the_opset() -> None:
    assert care.check(models.classifier(), "m.onnx") == "5 nodes, opset 17"


def test_checkers_words_travel_with_the_path() -> None:
    broken = models.matmul()
    del broken.graph.node[0].input[:]
    with pytest.raises(SourceError) as caught:
        care.check(broken, "m.onnx")
    assert str(caught.value).startswith("m.onnx: ONNX's checker refuses the model: Node(matmul) with schema(")


def test_weights_listed_as_inputs_become_constants() -> None:
    old = models.old_opset()
    assert care.free_initializers(old) == "2 taken off the inputs"
    assert [value.name for value in old.graph.input] == ["x"]
    assert old.ir_version == 8
    assert care.free_initializers(old) == "none among the inputs"


def test_every_node_gets_a_name_of_its_own() -> None:
    names = ["relu", "", "relu", "Relu_1", ""]
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=name) for i, name in enumerate(names)]
    model = models.model(nodes, [models.tensor("t0", 2)], [models.tensor("t5", 2)])
    assert care.name_nodes(model) == "4 nodes named"
    found = [node.name for node in model.graph.node]
    assert found == ["relu", "Relu_1", "relu_2", "Relu_1_3", "Relu_4"]
    assert care.name_nodes(model) == "all named"


@pytest.mark.parametrize("placeholder", ["?", "-1", "", "None", "unk", -1])
def test_placeholders_get_the_name_of_their_axis(placeholder: int | str) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    shape = (placeholder, 3, placeholder, "width")
    model = models.model([node], [models.tensor("x", *shape)], [models.tensor("y", *shape)])
    assert care.name_dimensions(model) == "named x.0, x.2"
    assert graph_inputs(model) == [OnnxTensorSpec("x", "fp32", ("x.0", 3, "x.2", "width"))]
    assert care.name_dimensions(model) == "all named"


def test_old_opset_is_lifted_and_computes_the_same() -> None:
    old = models.old_opset()
    lifted, said = care.lift_opset(old, "m.onnx")
    assert said == "opset 7 lifted to 13"
    assert care.opset_of(lifted) == 13
    onnx.checker.check_model(lifted)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    weight, bias = (torch.tensor(onnx.numpy_helper.to_array(tensor)) for tensor in old.graph.initializer)
    conv = torch.nn.functional.conv2d(torch.from_numpy(x), weight, bias, padding=1)
    expected = conv.flatten(1).softmax(1).reshape(conv.shape)  # opset 7: over C, H and W at once
    got = onnx.reference.ReferenceEvaluator(lifted).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4)
    kept, said = care.lift_opset(models.matmul(), "m.onnx")
    assert (said, care.opset_of(kept)) == ("opset 17 kept", 17)


def test_opset_that_does_not_convert_is_refused() -> None:
    node = helper.make_node("Fancy", ["x"], ["y"])
    model = models.model([node], [models.tensor("x", 2)], [models.tensor("y", 2)], opset=8)
    with pytest.raises(SourceError) as caught:
        care.lift_opset(model, "m.onnx")
    assert str(caught.value).startswith("m.onnx: opset 8 is too old and does not convert: ")
    assert caught.value.fix == "export with opset 13 or newer"


def test_shapes_of_inner_tensors_become_known() -> None:
    inferred, said = care.infer_shapes(models.classifier(batch=2))
    assert said == "4 tensors known"
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inferred.graph.value_info
    }
    assert shapes["stem"] == [2, 8, 16, 16]
    assert shapes["features"] == [2, 8]


@pytest.mark.parametrize(
    ("mode", "opset", "expected"),
    [("bilinear", 16, "linear"), ("nearest", 16, "nearest"), ("bicubic", 16, "cubic"), ("linear", 20, "linear")],
)
def test_grid_sample_modes_have_one_spelling(mode: str, opset: int, expected: str) -> None:
    assert care.grid_sample_modes(models.grid_sample(mode, opset)) == [("sample", expected)]


def test_nodes_inside_control_flow_are_found() -> None:
    inner = helper.make_node("GridSample", ["x", "grid"], ["z"], name="inside")
    branch = helper.make_graph([inner], "branch", [], [models.tensor("z", 1, 2, 3, 7)])
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=branch)
    inputs = [models.tensor("c", dtype="BOOL"), models.tensor("x", 1, 2, 4, 5), models.tensor("grid", 1, 3, 7, 2)]
    model = models.model([node], inputs, [models.tensor("y", 1, 2, 3, 7)])
    assert [node.name for node in care.all_nodes(model.graph)] == ["if", "inside", "inside"]
    assert care.grid_sample_modes(model) == [("inside", "linear"), ("inside", "linear")]


def test_nodes_are_put_after_those_they_read() -> None:
    sorted_model = models.classifier()
    shuffled = type(sorted_model)()
    shuffled.CopyFrom(sorted_model)
    nodes = list(sorted_model.graph.node)[::-1]
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    assert care.sort_nodes(shuffled, "m.onnx").endswith("nodes moved")
    onnx.checker.check_model(shuffled)
    assert care.sort_nodes(shuffled, "m.onnx") == "in order"


def test_a_branch_waits_for_what_it_reads_from_outside() -> None:
    inside = helper.make_graph([helper.make_node("Neg", ["t"], ["inner"])], "b", [], [models.tensor("inner", 2)])
    nodes = [
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=inside, else_branch=inside),
        helper.make_node("Relu", ["x"], ["t"], name="relu"),
    ]
    model = models.model(nodes, [models.tensor("x", 2), models.tensor("c", dtype="BOOL")], [models.tensor("y", 2)])
    assert care.sort_nodes(model, "m.onnx") == "2 nodes moved"
    assert [node.name for node in model.graph.node] == ["relu", "if"]


def test_nodes_that_wait_for_each_other_are_refused() -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Neg", ["a"], ["b"], name="next"),
    ]
    model = models.model(nodes, [models.tensor("x", 2)], [models.tensor("a", 2)])
    with pytest.raises(SourceError, match="nodes wait for each other: `"):
        care.sort_nodes(model, "m.onnx")
