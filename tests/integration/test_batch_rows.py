"""Requests share a batch only if `verify` found rows to be independent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from onnx import helper

from tests.support import models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnx

    from tests.conftest import Ran

    Trtkit = Callable[..., Ran]

ROWS = models.tensor("x", "rows", 3)
CONFIG = "name: rows\nsource: {onnx: rows.onnx}\nprofiles: [{rows: [1, 2, 4]}]\n"


def of_each_row() -> onnx.ModelProto:
    return models.model([node("Tanh", "x", "y")], [ROWS], [models.tensor("y", "rows", 3)])


def less_the_mean_of_all_rows() -> onnx.ModelProto:
    """A series whose axis 0 is time, not a batch."""
    nodes = [node("ReduceMean", "x", "mean", axes=[0], keepdims=1), node("Sub", "x mean", "y")]
    return models.model(nodes, [ROWS], [models.tensor("y", "rows", 3)])


def all_values() -> onnx.ModelProto:
    """One list of what is in all rows, as some detectors return it."""
    flat = models.constant("flat", [-1], "int64")
    return models.model([node("Reshape", "x flat", "y")], [ROWS], [models.tensor("y", "values")], [flat])


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], output, **attributes)


@pytest.mark.parametrize(
    ("make", "rows", "largest"),
    [(of_each_row, "independent", 4), (less_the_mean_of_all_rows, "mixed", 0), (all_values, "mixed", 0)],
)
def test_only_independent_rows_are_batched_by_a_server(
    make: Callable[[], onnx.ModelProto], rows: str, largest: int, workspace: Path, trtkit: Trtkit
) -> None:
    models.save(make(), workspace / "rows.onnx")
    (workspace / "rows.yaml").write_text(CONFIG)
    assert trtkit("build", "rows.yaml", "-o", "bundle", "-q").code == 0
    report: dict[str, Any] = json.loads(trtkit("verify", "bundle", "--json").out)
    assert (report["passed"], report["batch_rows"]) == (True, rows)
    deployed = json.loads(trtkit("deploy", "bundle", "--repository", "models", "--json").out)
    assert any("never share a batch" in note for note in deployed["notes"]) == (rows == "mixed")
    assert f"max_batch_size: {largest}" in (workspace / "models/rows/config.pbtxt").read_text()


def test_one_row_only_is_neither(workspace: Path, trtkit: Trtkit) -> None:
    models.save(of_each_row(), workspace / "rows.onnx")
    (workspace / "rows.yaml").write_text(CONFIG.replace("[1, 2, 4]", "[3, 3, 4]"))
    report: dict[str, Any] = json.loads(trtkit("verify", "rows.yaml", "--json").out)
    assert (report["passed"], report["batch_rows"]) == (True, None)
