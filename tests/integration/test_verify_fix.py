"""A planted fp16 overflow is found and repaired, and the repair is tested before it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from onnx import helper

from tests.support import models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnx

    from tests.conftest import Ran

    Trtkit = Callable[..., Ran]

CONFIG = """\
source: {onnx: norm.onnx}
precision: fp16
profiles: [{batch: [1, 2, 4]}]
verify: {ranges: {x: [-2000, 2000]}, random_shapes: 0}
"""


def norm() -> onnx.ModelProto:
    """x [batch, 64] over its root mean square, times a matrix: squares of 2000 are no fp16 numbers, the rest is."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squares"], name="norm/square"),
        helper.make_node("ReduceMean", ["squares"], ["mean"], name="norm/mean", axes=[-1]),
        helper.make_node("Sqrt", ["mean"], ["rms"], name="norm/sqrt"),
        helper.make_node("Div", ["x", "rms"], ["unit"], name="norm/divide"),
        helper.make_node("MatMul", ["unit", "w"], ["y"], name="head/matmul"),
    ]
    inputs, outputs = [models.tensor("x", "batch", 64)], [models.tensor("y", "batch", 8)]
    return models.model(nodes, inputs, outputs, [models.weights("w", 64, 8)])


@pytest.fixture
def config(workspace: Path) -> Path:
    models.save(norm(), workspace / "norm.onnx")
    path = workspace / "norm.yaml"
    path.write_text(CONFIG)
    return path


def test_an_overflow_is_named_repaired_and_the_repaired_config_verifies(
    config: Path, trtkit: Trtkit, workspace: Path
) -> None:
    repaired = trtkit("verify", config, "--fix", "fixed.yaml")
    assert repaired.code == 0
    assert "repaired: fixed.yaml keeps norm/square" in repaired.out
    kept = yaml.safe_load((workspace / "fixed.yaml").read_text())["keep_fp32"]
    assert "norm/square" in kept
    assert "head/matmul" not in kept  # fp16 is kept where it is harmless

    again = trtkit("verify", "fixed.yaml", "--layers", "--json")
    assert again.code == 0
    layers = {layer["node"]: layer for layer in again.json()["layers"]}
    assert layers["norm/square"]["dtype"] == "fp32"
    assert layers["head/matmul"]["dtype"] == "fp16"


def test_what_no_fp32_node_repairs_is_an_error_and_writes_nothing(config: Path, refuses: Callable[..., str]) -> None:
    impossible = (
        "--set",
        "verify.max_relative_rms_error=1.0e-12",
        "--set",
        "keep_fp32=['*']",
        "--set",
        "io_types=fp16",
    )
    assert refuses("verify", config, "--fix", "out.yaml", *impossible, "-q") == (
        "no set of fp32 nodes brings `norm` into tolerance 1e-12; tried: *\n"
        "fix: build it in fp32 or bf16, or set `verify.max_relative_rms_error` to what the task allows"
    )


def test_a_right_network_needs_no_repair(config: Path, trtkit: Trtkit, workspace: Path) -> None:
    ran = trtkit("verify", config, "--set", "precision=fp32", "--fix", "fixed.yaml")
    assert ran.code == 0
    assert not (workspace / "fixed.yaml").exists()
