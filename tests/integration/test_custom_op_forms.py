"""Sampling ops are built with GridSample or gathers, as configured, and compute the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.support import custom_op_models
from tests.support.decoders import relative_rms
from tests.support.hybrids import answers, case_of, saved
from trtkit.runtime.model import open_model
from trtkit.verification.detections import paired_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

pytestmark = pytest.mark.usefixtures("one_export")


def built(trtkit: Callable[..., Ran], form: str) -> dict[str, int]:
    """Build with a form into a folder of its name; return how many layers there are of each type."""
    ran = trtkit("build", "m.yaml", "--set", f"custom_ops.form={form}", "-o", form, "--json")
    assert ran.code == 0, ran.err
    manifest = ran.json()["manifest"]
    steps = {step["name"]: step["detail"] for step in manifest["steps"]}
    said = steps.get("custom ops", "none")  # a hybrid's are those of its ONNX parts
    assert said.endswith(f"; form {form}") is (form != "grid_sample" and said != "none")
    assert manifest["config"]["custom_ops"]["form"] == form
    layers: dict[str, int] = manifest["totals"]["layers_by_type"]
    return layers


def test_both_forms_of_an_onnx_model_are_built_and_equal(trtkit: Callable[..., Ran], workspace: Path) -> None:
    onnx.save(custom_op_models.deform_conv(), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    x = np.random.default_rng(0).standard_normal((2, 6, 9, 7)).astype(np.float32)
    found = {}
    for form, samples, gathers in (("grid_sample", 2, 0), ("gather", 0, 8)):
        layers = built(trtkit, form)
        assert (layers.get("GRID_SAMPLE", 0), layers.get("GATHER", 0)) == (samples, gathers), layers
        found[form] = torch.from_numpy(open_model(workspace / form).run({"x": x})["y"])
    assert relative_rms(found["gather"], found["grid_sample"]) <= 1e-5


@pytest.mark.parametrize(("form", "other"), [("grid_sample", "; form gather"), ("gather", "")])
def test_verify_computes_what_onnx_runtime_lacks_in_the_other_form(
    form: str, other: str, trtkit: Callable[..., Ran], workspace: Path
) -> None:
    onnx.save(custom_op_models.mmcv_deform_conv(1), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nverify: {random_shapes: 0}\n")
    ran = trtkit("verify", "m.yaml", "--set", f"custom_ops.form={form}", "--json")
    assert ran.code == 0, ran.err
    assert ran.json()["reference"].endswith(f"from mmcv::MMCVModulatedDeformConv2d{other}")


@pytest.mark.parametrize(("form", "samples"), [("grid_sample", 1), ("planes", 2), ("gather", 0)])
def test_every_form_of_a_volume_verifies(form: str, samples: int, trtkit: Callable[..., Ran], workspace: Path) -> None:
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], "sample", mode="linear", padding_mode="border")
    inputs = [("x", [1, 2, 3, 5, 4]), ("grid", [1, 2, 3, 4, 3])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 2, 3, 4])
    graph = helper.make_graph([node], "g", values, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    assert built(trtkit, form).get("GRID_SAMPLE", 0) == samples
    assert trtkit("verify", form).code == 0


@pytest.mark.parametrize(("form", "samples"), [pytest.param("grid_sample", 3, marks=pytest.mark.slow), ("gather", 0)])
def test_both_forms_of_a_written_decoder_are_those_of_transformers(
    form: str, samples: int, trtkit: Callable[..., Ran], workspace: Path
) -> None:
    whole = case_of("RTDetrForObjectDetection")
    case = replace(whole, config={**whole.config, "decoder_layers": 1})
    model = saved(case, workspace / "model")
    (workspace / "m.yaml").write_text(f"source: {{hf: model}}\nimage_size: {list(case.size)}\n")
    assert built(trtkit, form).get("GRID_SAMPLE", 0) == samples
    pixels = torch.randn(1, 3, *case.size, generator=torch.Generator().manual_seed(0))
    ours = open_model(workspace / form).run({"pixel_values": pixels.numpy()})
    theirs = {name: value.numpy() for name, value in answers(model, case, pixels).items()}
    ours = paired_rows(ours, theirs)
    for name in case.outputs:
        assert relative_rms(torch.from_numpy(ours[name]), torch.from_numpy(theirs[name])) <= 1e-5


def test_plugins_that_are_not_there_are_refused_before_the_build(refuses: Callable[..., str], workspace: Path) -> None:
    onnx.save(custom_op_models.deform_conv(), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\ncustom_ops: {plugins: always}\n")
    assert refuses("build", "m.yaml", code=2) == (
        "the config does not fit the backend\n"
        "  custom_ops.plugins: the backend `tensorrt_rtx` has no plugins\n"
        "    fix: set `never`, which builds each op from standard operators, or use a "
        "target with the backend `tensorrt`"
    )
