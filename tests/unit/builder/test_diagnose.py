from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import helper

from tests.support import models
from trtkit.builder.diagnose import advice_for, diagnose
from trtkit.builder.jobs import DiagnoseRequest
from trtkit.errors import UnsupportedOperatorsError
from trtkit.jobs.job import JobContext

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.errors import Problem


def refused(folder: Path, model: onnx.ModelProto) -> list[str]:
    return [problem.where for problem in problems(folder, model)]


def problems(folder: Path, model: onnx.ModelProto) -> list[Problem]:
    path = models.save(model, folder / "m.onnx")
    with pytest.raises(UnsupportedOperatorsError) as caught:
        diagnose(DiagnoseRequest("tensorrt_rtx", path), JobContext())
    count = len(caught.value.problems)
    assert caught.value.what == f"TensorRT refuses {count} node{'s' * (count != 1)} of the model"
    return list(caught.value.problems)


def test_every_node_of_an_unknown_operator_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Det", ["x"], [f"d{index}"], name=f"det{index}") for index in range(3)]
    nodes.append(helper.make_node("Sum", ["d0", "d1", "d2"], ["y"], name="sum"))
    model = models.model(nodes, [models.tensor("x", 2, 3, 3)], [models.tensor("y", 2)])
    assert refused(tmp_path, onnx.shape_inference.infer_shapes(model)) == [f"Det `det{i}` (ai.onnx)" for i in range(3)]


def test_node_that_is_known_but_misused_is_named_alone(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ScatterElements", ["x", "i", "x"], ["a"], name="adding", axis=0, reduction="add"),
        helper.make_node("ScatterElements", ["a", "i", "a"], ["y"], name="setting", axis=0),
    ]
    inputs = [models.tensor("x", 4), models.tensor("i", 4, dtype="INT64")]
    assert refused(tmp_path, models.model(nodes, inputs, [models.tensor("y", 4)])) == [
        "ScatterElements `adding` (ai.onnx)"
    ]


def test_the_missing_gpu_is_no_reason(tmp_path: Path) -> None:
    nodes = [helper.make_node("DequantizeLinear", [f"b{i}", "s"], [f"y{i}"], name=f"dq{i}") for i in range(2)]
    constants = [models.constant("s", 0.5), *(models.constant(f"b{i}", [1, 2], "int32") for i in range(2))]
    model = models.model(nodes, [], [models.tensor(f"y{i}", 2) for i in range(2)], constants)
    found = problems(tmp_path, model)
    assert [problem.where for problem in found] == [f"DequantizeLinear `dq{i}` (ai.onnx)" for i in range(2)]
    for problem in found:
        assert "input has type Int32 but must have type" in problem.what
        assert "cuda" not in problem.what.lower()


def test_model_without_fault_has_nothing_to_report(tmp_path: Path) -> None:
    path = models.save(models.classifier(), tmp_path / "m.onnx")
    diagnose(DiagnoseRequest("tensorrt_rtx", path), JobContext())


@pytest.mark.parametrize(
    ("operator", "domain", "opset", "expected"),
    [
        ("NonZero", "", 17, "its output's size depends on data: use Where or a mask"),
        ("Unique", "", 17, "its output's size depends on data: compute it outside the engine"),
        ("Compress", "", 17, "its output's size depends on data: use Where with a mask"),
        ("Attention", "com.microsoft", 17, "`com.microsoft` is not a standard domain: give the model a local function"),
        ("Det", "", 11, "export with a newer opset (this model has 11), which may write it in other operators"),
        ("Det", "", 17, "rewrite this part of the model with operators from TensorRT's support matrix"),
    ],
)
def test_advice_fits_operator_domain_and_opset(operator: str, domain: str, opset: int, expected: str) -> None:
    assert advice_for(helper.make_node(operator, [], [], domain=domain), opset).startswith(expected)
