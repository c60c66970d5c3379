"""Detectors as people export them, through the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from tests import models
from tests.hybrids import case_of, model_of

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
