"""An input that selects a branch is fixed before the build, since TensorRT would build both branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from onnx import helper

from tests.support import models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

# Each rate has branches of its own sizes: none fits the other's, as in silero-vad.
CONFIG = "source: {onnx: m.onnx}\nprofiles: [{length: 8}]\n"


def _reshape(width: int) -> object:
    nodes = [
        helper.make_node("Constant", [], [f"shape{width}"], value_ints=[-1, width]),
        helper.make_node("Reshape", ["x", f"shape{width}"], [f"folded{width}"]),
        helper.make_node("ReduceMean", [f"folded{width}"], [f"mean{width}"], axes=[1], keepdims=0),
    ]
    return helper.make_graph(nodes, f"by{width}", [], [models.tensor(f"mean{width}", f"rows{width}")])


@pytest.fixture
def workspace_with_model(workspace: Path) -> Path:
    nodes = [
        helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        helper.make_node("If", ["is_wide"], ["y"], then_branch=_reshape(4), else_branch=_reshape(3)),
    ]
    inputs = [models.tensor("x", "length"), models.tensor("rate", dtype="INT64")]
    wide = models.constant("wide", 16000, "int64")
    models.save(models.model(nodes, inputs, [models.tensor("y", "rows")], [wide]), workspace / "m.onnx")
    (workspace / "m.yaml").write_text(CONFIG)
    return workspace


def test_a_fixed_input_is_a_constant_of_engine_and_reference(
    workspace_with_model: Path, trtkit: Callable[..., Ran]
) -> None:
    trtkit("build", "m.yaml", "--set", "fixed_inputs.rate=16000", "--quiet")
    manifest = trtkit("inspect", "bundles/m", "--json").json()["manifest"]
    assert [tensor["name"] for tensor in manifest["inputs"]] == ["x"]
    assert "rate = 16000" in str(manifest["steps"])
    assert trtkit("verify", "bundles/m", "--quiet").code == 0


def test_without_it_the_error_says_which_input_may_choose(
    workspace_with_model: Path, refuses: Callable[..., str]
) -> None:
    message = refuses("build", "m.yaml", "--quiet")
    assert message.endswith(
        "so both must fit the profile's shapes; if an input chooses, here one of `rate`, give it the value you use: "
        "`fixed_inputs: {NAME: VALUE}`"
    )


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("speed", "1", "unknown input; the model's are x, rate"),
        ("rate", "0.5", "0.5 is not a number of type int64"),
        ("rate", "[1, 2]", "(1, 2) does not have the shape []"),
    ],
)
def test_a_value_that_an_input_cannot_hold_is_refused(
    workspace_with_model: Path, refuses: Callable[..., str], name: str, value: str, problem: str
) -> None:
    message = refuses("build", "m.yaml", "--set", f"fixed_inputs.{name}={value}", "--quiet", code=2)
    assert message == f"invalid config\n  fixed_inputs.{name}: {problem}"


def test_only_files_have_inputs_to_fix(workspace: Path, refuses: Callable[..., str]) -> None:
    (workspace / "m.yaml").write_text("source: {hf: model}\nfixed_inputs: {rate: 1}\n")
    message = refuses("build", "m.yaml", "--quiet", code=2)
    assert "`fixed_inputs` applies to ONNX files only" in message
