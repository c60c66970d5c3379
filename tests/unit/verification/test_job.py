"""Wrong networks are caught: by the outputs, by the layers, and at the corners where they go wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.support import models, reports
from trtkit.backends import load_backend
from trtkit.builder.stages import OnnxFile, PreparedStage
from trtkit.config.schema import ModelConfig
from trtkit.errors import TrtkitError
from trtkit.jobs.events import Phase, Verdict, ignore
from trtkit.jobs.job import JobContext
from trtkit.jobs.runner import Runner
from trtkit.network.input_spec import ProfileShapes
from trtkit.network.onnx.parse import parse_onnx
from trtkit.reference import Executor, read_layers, to_array
from trtkit.verification.compare import compare
from trtkit.verification.job import verify
from trtkit.verification.jobs import VerifyRequest, VerifySettings
from trtkit.verification.references import OnnxRuntimeReference
from trtkit.verification.verdict import reason, verdict
from trtkit.verification.verify import run_job

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.verification.report import Report

PROFILE = {"images": ProfileShapes((1, 3, 16, 16), (2, 3, 16, 16), (4, 3, 16, 16))}


def verified(source: onnx.ModelProto, network: onnx.ModelProto, folder: Path, **changes: Any) -> Report:
    """Verify `network` as if it had been made from `source`."""
    path = models.save(network, folder / "network.onnx")
    stage = PreparedStage("m", "parser", ("model",), OnnxFile(path, path))
    config = changes.pop("config", {"source": {"onnx": str(models.save(source, folder / "source.onnx"))}})
    report, profile = changes.pop("report", ignore), changes.pop("profile", PROFILE)
    asked = VerifySettings(trust_source=True, **changes)
    request = VerifyRequest(ModelConfig.model_validate(config), "tensorrt_rtx", asked, (stage,), (profile,))
    return verify(request, JobContext(report))


def with_changed_weight(name: str, change: float) -> onnx.ModelProto:
    """Return the classifier with one of a weight's values changed."""
    model = models.classifier()
    (weight,) = [item for item in model.graph.initializer if item.name == name]
    values = numpy_helper.to_array(weight).copy()
    values.reshape(-1)[0] += change
    weight.CopyFrom(numpy_helper.from_array(values, name))
    return model


def test_the_right_network_passes_everywhere(tmp_path: Path) -> None:
    found = verified(models.classifier(), models.classifier(), tmp_path)
    assert found.passed is True
    assert found.outputs["logits"].relative_rms_error < 1e-5
    assert all(corner.passed for corner in found.corners)
    assert found.layers == ()


@pytest.mark.parametrize("name", ["stem.weight", "head.weight", "head.bias"])
def test_one_changed_weight_is_caught(tmp_path: Path, name: str) -> None:
    found = verified(models.classifier(), with_changed_weight(name, 0.1), tmp_path)
    assert found.passed is False
    assert found.outputs["logits"].relative_rms_error > 1e-4
    assert not any(corner.passed for corner in found.corners)


def test_a_failed_network_shows_its_layers_unasked(tmp_path: Path) -> None:
    found = verified(models.classifier(), with_changed_weight("stem.weight", 0.1), tmp_path)
    assert {layer.node for layer in found.layers} >= {"stem/conv", "head/gemm"}


def test_the_verdict_comes_before_the_layers_which_may_be_left_out(tmp_path: Path) -> None:
    events: list[Any] = []
    wrong = with_changed_weight("stem.weight", 0.1)
    found = verified(models.classifier(), wrong, tmp_path, report=events.append, corners=False)
    (verdict_event,) = [event for event in events if isinstance(event, Verdict)]
    later = events[events.index(verdict_event) + 1 :]
    assert later == [Phase("compare layers")]
    assert verdict_event.report.outputs == found.outputs
    assert not verdict_event.report.passed
    without = verified(models.classifier(), wrong, tmp_path, layers=False, corners=False)
    assert (without.passed, without.layers) == (False, ())


VERDICT = reports.report(passed=False)


class Killed(Runner):
    """Gives a verdict, then dies."""

    def run(self, job: Any, request: Any) -> Any:  # noqa: ARG002
        self.report(Verdict(VERDICT))
        raise TrtkitError("the process ended by SIGKILL")


def test_a_verdict_survives_what_kills_the_comparison_of_layers() -> None:
    stage = PreparedStage("m", "parser", ("model",))
    config = ModelConfig.model_validate({"source": {"onnx": "m.onnx"}})
    report = run_job(VerifyRequest(config, "tensorrt_rtx", VerifySettings(), (stage,)), Killed())
    problem = "layers could not be compared: the process ended by SIGKILL"
    assert report == replace(VERDICT, layers_problem=problem)
    unwanted = run_job(VerifyRequest(config, "tensorrt_rtx", VerifySettings(layers=False), (stage,)), Killed())
    assert unwanted == VERDICT


def test_constants_that_are_not_the_networks_are_caught(tmp_path: Path) -> None:
    path = models.save(models.classifier(), tmp_path / "m.onnx")
    backend = load_backend("tensorrt_rtx")
    network = parse_onnx(backend, path, "ERROR")
    x = {"images": np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)}
    reference = OnnxRuntimeReference(path, "").run(x)["logits"]

    def error(constants: dict[str, Any]) -> float:
        executor = Executor(read_layers(backend, network.definition, constants))
        return compare(to_array(executor.run(x)["logits"]), reference).relative_rms_error

    assert error({}) < 1e-6
    assert error({"stem/conv/kernel": np.zeros((8, 3, 3, 3), np.float32)}) > 0.1


def nan_at_zero(divides: bool) -> onnx.ModelProto:
    """images -> images * 0 / 0, or images."""
    zero = models.constant("zero", 0)
    nodes = [
        helper.make_node("Mul", ["images", "zero"], ["none"], name="none"),
        helper.make_node("Div", ["none", "zero"], ["y"], name="ratio"),
    ]
    if not divides:
        nodes = [helper.make_node("Identity", ["images"], ["y"], name="same")]
    shape = ("batch", 3, 16, 16)
    return models.model(nodes, [models.tensor("images", *shape)], [models.tensor("y", *shape)], [zero])


def test_nan_of_ours_alone_does_not_pass(tmp_path: Path) -> None:
    found = verified(nan_at_zero(divides=False), nan_at_zero(divides=True), tmp_path, corners=False)
    assert found.passed is False
    assert found.outputs["y"].relative_rms_error == math.inf
    assert "not finite" in found.outputs["y"].problem


def test_nan_of_both_sides_is_named_and_proves_nothing(tmp_path: Path) -> None:
    found = verified(nan_at_zero(divides=True), nan_at_zero(divides=True), tmp_path, corners=False)
    assert found.passed is True
    assert found.outputs["y"].equal_nans == found.outputs["y"].values == 2 * 3 * 16 * 16
    assert found.hollow == ("y",)
    assert verdict(found) == "PASS (inconclusive)"


def scores_beside(offset: float) -> onnx.ModelProto:
    """x [batch, 3] -> 64 large values beside x + offset - 2048, which 16 bits hold to 2."""
    nodes = [
        helper.make_node("Concat", ["x"] * 21 + ["x"], ["many"], name="many", axis=1),
        helper.make_node("Mul", ["many", "large"], ["features"], name="features"),
        helper.make_node("Add", ["x", "offset"], ["far"], name="far"),
        helper.make_node("Sub", ["far", "offset"], ["scores"], name="scores"),
        helper.make_node("Concat", ["features", "scores"], ["y"], name="join", axis=1),
    ]
    constants = [models.constant("large", 1000.0), models.constant("offset", offset)]
    return models.model(nodes, [models.tensor("x", "batch", 3)], [models.tensor("y", "batch", 69)], constants)


def test_scores_that_are_gone_beside_large_features_are_wrong(tmp_path: Path) -> None:
    """As 16 bits lose them; the error over the whole output is a thousandth of what is allowed."""
    profile = {"x": ProfileShapes((1, 3), (8, 3), (8, 3))}
    found = verified(scores_beside(0.0), scores_beside(2.0**24), tmp_path, profile=profile, corners=False)
    assert found.outputs["y"].relative_rms_error < found.tolerance * 10
    assert found.passed is False
    assert found.outputs["y"].worst_slice.axis == 1
    assert found.outputs["y"].worst_slice.index >= 66


def test_a_network_that_hardly_moves_proves_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "tiny"], ["small"], name="small"),
        helper.make_node("Add", ["small", "large"], ["y"], name="far"),
    ]
    constants = [models.constant("tiny", 1e-5), models.constant("large", 636.0)]
    model = models.model(nodes, [models.tensor("x", "batch", 3)], [models.tensor("y", "batch", 3)], constants)
    profile = {"x": ProfileShapes((1, 3), (2, 3), (8, 3))}
    found = verified(model, model, tmp_path, profile=profile, corners=False)
    assert found.passed is True
    assert found.outputs["y"].spread < 1e-6
    assert found.hollow == ("y",)
    assert reason(found).endswith(", so a network that ignores its inputs would pass too")


def batch_of(limit: int) -> onnx.ModelProto:
    """x [batch, 4] -> x cut to at most `limit` rows, then zeros in the place of the rest."""
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "axis"], ["head"], name="head"),
        helper.make_node("Slice", ["x", "to", "end", "axis"], ["tail"], name="tail"),
        helper.make_node("Sub", ["tail", "tail"], ["nothing"], name="nothing"),
        helper.make_node("Concat", ["head", "nothing"], ["y"], name="join", axis=0),
    ]
    limits = {"from": [0], "to": [limit], "end": [2**31 - 1], "axis": [0]}
    initializers = [models.constant(name, value, "int64") for name, value in limits.items()]
    shape = ("batch", 4)
    return models.model(nodes, [models.tensor("x", *shape)], [models.tensor("y", *shape)], initializers)


def test_a_fault_of_large_batches_shows_at_their_corner_only(tmp_path: Path) -> None:
    profile = {"x": ProfileShapes((1, 4), (2, 4), (8, 4))}
    found = verified(batch_of(100), batch_of(4), tmp_path, profile=profile)
    assert found.outputs["y"].relative_rms_error == 0
    passed = {corner.name: corner.passed for corner in found.corners}
    assert passed["profile 0 min"]
    assert passed["profile 0 opt"]
    assert not passed["profile 0 max"]
    assert {corner.name: corner.outputs for corner in found.corners}["profile 0 max"] == ("y",)
    assert found.passed is False
