"""Wrong networks are caught: by the outputs, by the layers, and at the corners where they go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests import models
from trtkit.backends import load_backend
from trtkit.network.onnx_parse import parse_onnx
from trtkit.reference import Executor, Options, to_array
from trtkit.verify.compare import compare
from trtkit.verify.job import verify
from trtkit.verify.references import OnnxRuntimeReference

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = {"images": {"min": [1, 3, 16, 16], "opt": [2, 3, 16, 16], "max": [4, 3, 16, 16]}}


def verified(source: onnx.ModelProto, network: onnx.ModelProto, folder: Path, **changes: Any) -> Any:
    """Verify `network` as if it had been made from `source`."""
    arguments = {
        "config": {"source": {"onnx": str(models.save(source, folder / "source.onnx"))}},
        "onnx": str(models.save(network, folder / "network.onnx")),
        "backend": "tensorrt_rtx",
        "profiles": [PROFILE],
        "inputs": [],
        "corners": True,
        "layers": False,
    }
    return verify({**arguments, **changes}, lambda _: None)


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
    assert found["passed"] is True
    assert found["outputs"]["logits"]["relative_rms_error"] < 1e-5
    assert all(corner["passed"] for corner in found["corners"])
    assert found["layers"] == []


@pytest.mark.parametrize("name", ["stem.weight", "head.weight", "head.bias"])
def test_one_changed_weight_is_caught(tmp_path: Path, name: str) -> None:
    found = verified(models.classifier(), with_changed_weight(name, 0.1), tmp_path)
    assert found["passed"] is False
    assert found["outputs"]["logits"]["relative_rms_error"] > 1e-4
    assert not any(corner["passed"] for corner in found["corners"])


def test_a_failed_network_shows_its_layers_unasked(tmp_path: Path) -> None:
    found = verified(models.classifier(), with_changed_weight("stem.weight", 0.1), tmp_path)
    assert {layer["node"] for layer in found["layers"]} >= {"stem/conv", "head/gemm"}


def test_constants_that_are_not_the_networks_are_caught(tmp_path: Path) -> None:
    path = models.save(models.classifier(), tmp_path / "m.onnx")
    backend = load_backend("tensorrt_rtx")
    network = parse_onnx(backend, path, "ERROR")
    x = {"images": np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)}
    reference = OnnxRuntimeReference(path, "").run(x)["logits"]

    def error(constants: dict[str, Any]) -> float:
        executor = Executor(backend, network.definition, Options(constants=constants))
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


def test_nan_does_not_pass_even_where_the_reference_has_it_too(tmp_path: Path) -> None:
    for source in (nan_at_zero(divides=False), nan_at_zero(divides=True)):
        found = verified(source, nan_at_zero(divides=True), tmp_path, corners=False)
        assert found["passed"] is False
        assert found["outputs"]["y"]["relative_rms_error"] is None
        assert "not finite" in found["outputs"]["y"]["problem"]


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
    profile = {"x": {"min": [1, 4], "opt": [2, 4], "max": [8, 4]}}
    found = verified(batch_of(100), batch_of(4), tmp_path, profiles=[profile])
    assert found["outputs"]["y"]["relative_rms_error"] == 0
    passed = {corner["name"]: corner["passed"] for corner in found["corners"]}
    assert passed["profile 0 min"]
    assert passed["profile 0 opt"]
    assert not passed["profile 0 max"]
    assert found["passed"] is False
