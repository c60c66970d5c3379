"""Detectors in common export formats, in the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.tools import update_model_dims

from tests.support import models
from tests.support.hybrids import case_of, model_of
from tests.support.quantized_vision import onnx_runtime
from trtkit.verification.compare import compare
from trtkit.verification.detections import counted_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


class _Boxes(torch.nn.Module):
    """A detector that returns logits and boxes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.model(pixel_values=pixel_values, return_dict=True)
        return found.logits, found.pred_boxes


def test_rt_detr_v2_exported_whole_builds_and_verifies(trtkit: Callable[..., Ran], workspace: Path) -> None:
    case = case_of("RTDetrV2ForObjectDetection")
    pixels = torch.rand(1, 3, *case.size)
    torch.onnx.export(
        _Boxes(model_of(case)).eval(), (pixels,), "m.onnx", input_names=["pixel_values"],
        output_names=["logits", "pred_boxes"], opset_version=17, dynamo=False,
        dynamic_axes={name: {0: "batch"} for name in ("pixel_values", "logits", "pred_boxes")},
    )  # fmt: skip
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    built = trtkit("build", "m.yaml", "-o", "out", "--quiet")
    assert built.code == 0, built.err
    verified = trtkit("verify", "out")
    assert verified.code == 0, verified.out + verified.err


def _with_suppression() -> onnx.ModelProto:
    """images [batch, 3, 32, 32] -> boxes [batch, 64, 4], and (image, class, box) of those that suppression leaves."""
    generator = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["images", "stem"], ["f"], "stem", strides=[4, 4]),
        helper.make_node("Relu", ["f"], ["a"], "relu"),
        helper.make_node("Conv", ["a", "box"], ["b"], "box"),
        helper.make_node("Conv", ["a", "score"], ["s"], "score"),
        helper.make_node("Reshape", ["b", "four"], ["b1"], "boxes/flat"),
        helper.make_node("Transpose", ["b1"], ["boxes"], "boxes/turned", perm=[0, 2, 1]),
        helper.make_node("Reshape", ["s", "three"], ["s1"], "scores/flat"),
        helper.make_node("Sigmoid", ["s1"], ["scores"], "scores"),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["selected"], "nms"),
    ]
    initializers = [
        models.constant("stem", generator.standard_normal((8, 3, 4, 4)) / 7),
        models.constant("box", generator.standard_normal((4, 8, 1, 1)) / 3),
        models.constant("score", generator.standard_normal((3, 8, 1, 1)) / 3),
        models.constant("four", [0, 4, -1], "int64"),
        models.constant("three", [0, 3, -1], "int64"),
        models.constant("most", [6], "int64"),
        models.constant("iou", [0.3]),
        models.constant("least", [0.8]),
    ]
    outputs = [models.tensor("boxes", "batch", 64, 4), models.tensor("selected", "n", 3, dtype="INT64")]
    return models.model(nodes, [models.tensor("images", "batch", 3, 32, 32)], outputs, initializers)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_detector_that_ends_in_suppression(trtkit: Callable[..., Ran], workspace: Path, precision: str) -> None:
    onnx.save(_with_suppression(), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    built = trtkit("build", "m.yaml", "-o", "out", "--quiet", "--set", f"precision={precision}")
    assert built.code == 0, built.err
    found = trtkit("inspect", "out", "--json").json()
    steps = {step["name"]: step["detail"] for step in found["manifest"]["steps"]}
    assert steps["custom ops"] == "1 Nms from NonMaxSuppression"
    if precision == "fp32":  # other boxes are selected where scores are rounded
        verified = trtkit("verify", "out")
        assert verified.code == 0, verified.out + verified.err
        assert "with trtkit's functions for 1 Nms" in " ".join(verified.out.split())


def test_a_model_in_integer_operators(trtkit: Callable[..., Ran], workspace: Path) -> None:
    generator = np.random.default_rng(0)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        helper.make_node("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "s2", "z2"], ["c"], "conv"),
        helper.make_node("DequantizeLinear", ["c", "s2", "z2"], ["y"], "dequantize"),
    ]
    weights = numpy_helper.from_array(generator.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8), "w")
    initializers = [weights, models.constant("s", 0.02), models.constant("ws", 0.01), models.constant("s2", 0.05)]
    initializers += [models.constant("z", 128, "uint8"), models.constant("wz", 0, "int8")]
    initializers += [models.constant("z2", 120, "uint8")]
    inputs, outputs = [models.tensor("x", "n", 3, 8, 8)], [models.tensor("y", "n", 4, 6, 6)]
    onnx.save(models.model(nodes, inputs, outputs, initializers), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    built = trtkit("build", "m.yaml", "-o", "out", "--quiet")
    assert built.code == 0, built.err
    steps = {step["name"]: step["detail"] for step in trtkit("inspect", "out", "--json").json()["manifest"]["steps"]}
    assert steps["rewrites"] == "1 QLinearConv, 2 uint8 tensor, 1 QuantizeLinear, 1 DequantizeLinear"


def _without_nms(*, wrong: bool = False) -> onnx.ModelProto:
    """images [batch, 3, 64, 64] -> rows [batch, 100, 6] of the best of 256 places, as YOLOv10 exports.

    Bright places are objects; all others score 6e-6, and only rounding decides which of them come first.
    """
    generator = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["images", "box"], ["b0"], "box", strides=[4, 4]),
        helper.make_node("Abs", ["b0"], ["b1"], "box/abs"),
        helper.make_node("Reshape", ["b1", "flat4"], ["b2"], "box/flat"),
        helper.make_node("Transpose", ["b2"], ["b3"], "box/turned", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["b3", "corners"], ["boxes"], "box/corners"),
        helper.make_node("Conv", ["images", "noise"], ["n0"], "noise", strides=[4, 4]),
        helper.make_node("Conv", ["images", "mean"], ["m0"], "mean", strides=[4, 4]),
        helper.make_node("Sub", ["m0", "bright"], ["m1"], "mean/above"),
        helper.make_node("Relu", ["m1"], ["m2"], "mean/relu"),
        helper.make_node("Mul", ["m2", "gain"], ["m3"], "mean/gain"),
        helper.make_node("Add", ["n0", "m3"], ["s0"], "score/sum"),
        helper.make_node("Sub", ["s0", "twelve"], ["s1"], "score/logit"),
        helper.make_node("Sigmoid", ["s1"], ["s2"], "score/sigmoid"),
        helper.make_node("Reshape", ["s2", "flat"], ["scores"], "score/flat"),
        helper.make_node("TopK", ["scores", "hundred"], ["best", "where"], "best", axis=1),
        helper.make_node("Unsqueeze", ["best", "two"], ["best3"], "best/column"),
        helper.make_node("Unsqueeze", ["where", "two"], ["where3"], "where/column"),
        helper.make_node("Expand", ["where3", "four"], ["where4"], "where/four"),
        helper.make_node("GatherElements", ["boxes", "where4"], ["chosen"], "chosen", axis=1),
        helper.make_node("Mul", ["best3", "zero"], ["kinds"], "kinds"),
        helper.make_node("Concat", ["chosen", "best3", "kinds"], ["rows"], "rows", axis=2),
    ]
    noise = generator.standard_normal((1, 3, 4, 4)) * 3e-7
    box = generator.standard_normal((4, 3, 4, 4)) * (10 if wrong else 8)
    constants = {"box": box, "noise": noise, "mean": np.full((1, 3, 4, 4), 1 / 48), "bright": 2.0, "gain": 10.0}
    constants |= {"twelve": 12.0, "zero": 0.0, "corners": np.eye(4) + np.eye(4, k=2)}
    sizes = {"flat4": [0, 4, -1], "flat": [0, -1], "hundred": [100], "two": [2], "four": [1, 1, 4]}
    initializers = [models.constant(name, value) for name, value in constants.items()]
    initializers += [models.constant(name, value, "int64") for name, value in sizes.items()]
    inputs, outputs = [models.tensor("images", "batch", 3, 64, 64)], [models.tensor("rows", "batch", 100, 6)]
    return models.model(nodes, inputs, outputs, initializers)


def _scene(objects: int) -> np.ndarray[Any, Any]:
    """Return noise [1, 3, 64, 64] with some bright places."""
    scene = np.random.default_rng(1).standard_normal((1, 3, 64, 64)).astype(np.float32)
    for index in range(objects):
        scene[:, :, 8 * index : 8 * index + 4, 12:16] += 4 + index / 8
    return scene


@pytest.mark.parametrize("task", ["null", "{kind: detection, boxes: {layout: suppressed}}"])
def test_boxes_that_score_too_little_to_count_are_not_compared(
    task: str, trtkit: Callable[..., Ran], workspace: Path
) -> None:
    models.save(_without_nms(), workspace / "m.onnx")
    config = (
        "{source: {onnx: m.onnx}, profiles: [{batch: [1, 2, 4]}], preprocess: {resize: {exact: [64, 64]}}, task: %s}"
    )
    (workspace / "m.yaml").write_text(config % task)
    np.savez(workspace / "scene.npz", images=_scene(5))
    ran = trtkit("verify", "m.yaml", "--inputs", "scene.npz", "--no-layers")
    assert ran.code == 0, ran.out
    assert "boxes with a score of 0.25 or more: " in ran.out
    report = trtkit("verify", "m.yaml", "--inputs", "scene.npz", "--no-layers", "--no-corners", "--json").json()
    assert report["counted"]["rows"] >= 5
    nothing = trtkit("verify", "m.yaml", "--no-layers")
    assert nothing.code == 0, nothing.out
    text = " ".join(nothing.out.split())
    assert "PASS (inconclusive): m in fp32" in text
    assert "no box scored 0.25, so only the scores were compared: give pictures" in text


def test_boxes_that_count_differ_if_they_are_elsewhere_and_not_if_they_are_in_another_order() -> None:
    right, wrong = (_outputs(model) for model in (_without_nms(), _without_nms(wrong=True)))
    ours, theirs = counted_rows(wrong, right, 0.25)
    assert compare(ours, theirs).relative_rms_error > 0.1
    assert compare(*counted_rows(right[:, ::-1], right, 0.25)).relative_rms_error == 0.0


def _outputs(model: onnx.ModelProto) -> np.ndarray[Any, Any]:
    return np.asarray(onnx_runtime(model, {"images": _scene(5)})["rows"], np.float64)


def test_a_random_size_that_the_network_refuses_asks_for_multiples(trtkit: Callable[..., Ran], workspace: Path) -> None:
    """x [1, 1, size] cut into rows of 4."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "cut")]
    shape = models.constant("shape", [-1, 4], "int64")
    models.save(
        models.model(nodes, [models.tensor("x", 1, 1, "size")], [models.tensor("y", "n", 4)], [shape]),
        workspace / "m.onnx",
    )
    ran = trtkit("verify", "m.onnx", "--set", "profiles=[{size: [4, 8, 64]}]", "--no-layers")
    assert ran.code == 3
    assert "if only multiples of a stride work, add it to the profile, e.g. `multiple_of: 32`" in " ".join(
        ran.out.split()
    )
    units = "profiles=[{size: {min: 4, opt: 8, max: 64, multiple_of: 4}}]"
    assert trtkit("verify", "m.onnx", "--set", units, "--no-layers").code == 0


def test_a_task_of_ultralytics_that_trtkit_lacks_stays_tensors(trtkit: Callable[..., Ran], workspace: Path) -> None:
    models.save(models.exported_by_ultralytics(models.detector(), task="segment"), workspace / "m.onnx")
    built = trtkit("build", "m.onnx", "-o", "out")
    assert built.code == 0, built.err
    steps = {step["name"]: step["detail"] for step in trtkit("inspect", "out", "--json").json()["manifest"]["steps"]}
    lacks = "no `task` of trtkit reads its outputs, which stay tensors"
    assert steps["metadata"] == f"Ultralytics `segment`, pictures of 64x64; {lacks}"


def test_profiles_of_a_model_with_fixed_sizes_are_an_error(trtkit: Callable[..., Ran], workspace: Path) -> None:
    model = update_model_dims.update_inputs_outputs_dims(
        models.exported_by_ultralytics(models.detector()), {"images": [1, 3, 64, 64]}, {"rows": [1, 6, 50]}
    )
    models.save(model, workspace / "m.onnx")
    refused = trtkit("build", "m.onnx", "-o", "out", "--set", "profiles=[{batch: [1, 4, 8]}]", "--quiet")
    assert refused.code == 2
    assert refused.err == (
        "error: the profiles do not fit the model\n"
        "  profiles.0.batch: unknown input or dimension `batch`\n"
        "    fix: all sizes of the model are fixed: remove `profiles`, or export the model with dynamic sizes\n"
        "fix: the model's inputs are images [1, 3, 64, 64]\n"
    )
