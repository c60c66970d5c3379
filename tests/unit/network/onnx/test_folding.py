"""Folding is kept only if the model computes the same and does not grow, as ONNX Runtime tells."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxslim
import pytest
from onnx import helper

from tests.support import models
from trtkit.network.onnx.folding import correct_outputs, fold_constants, run_sample
from trtkit.network.onnx.io import graph_inputs, graph_outputs

if TYPE_CHECKING:
    from pathlib import Path


def _with_constants() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["a", "a"], ["b"], name="constant"),
        helper.make_node("Identity", ["x"], ["same"], name="idle"),
        helper.make_node("Mul", ["same", "b"], ["y"], name="work"),
    ]
    inputs, outputs = [models.tensor("x", "n", 2)], [models.tensor("y", "n", 2)]
    return models.model(nodes, inputs, outputs, [models.constant("a", [1, 2])])


def test_constants_are_folded_and_the_interface_stays() -> None:
    model = _with_constants()
    slim, detail = fold_constants(model, run_sample(model, {"x": (3, 2)}))
    assert detail == "3 -> 1 nodes"
    assert [node.op_type for node in slim.graph.node] == ["Mul"]
    assert graph_inputs(slim) == graph_inputs(model)
    assert graph_outputs(slim) == graph_outputs(model)


def test_a_model_whose_inputs_folding_would_drop_is_kept() -> None:
    inputs = [models.tensor("x", 2), models.tensor("unused", 2)]
    model = models.model([helper.make_node("Relu", ["x"], ["y"])], inputs, [models.tensor("y", 2)])
    kept, _ = fold_constants(model)
    assert graph_inputs(kept) == graph_inputs(model)


def _wrongly_declared() -> onnx.ModelProto:
    """[n, 4] becomes [n, 2, 2] by a shape computed at run time; the file says [n, 4]. So ddddocr's recognizer does."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Slice", ["sizes", "zero", "one", "zero"], ["row"]),
        helper.make_node("Concat", ["row", "two", "two"], ["shape"], axis=0),
        helper.make_node("Relu", ["x"], ["active"]),
        helper.make_node("Reshape", ["active", "shape"], ["y"]),
    ]
    constants = [models.constant(name, [value], "int64") for value, name in enumerate(("zero", "one", "two"))]
    return models.model(nodes, [models.tensor("x", "n", 4)], [models.tensor("y", "n", 4)], constants)


def test_a_wrongly_declared_output_is_corrected_before_onnxslim_believes_it() -> None:
    model = _wrongly_declared()
    sample = run_sample(model, {"x": (3, 4)})
    assert sample is not None
    kept, detail = fold_constants(model, sample)
    assert "output `y` would change from [3, 2, 2] to [3, 4]" in detail
    assert correct_outputs(model, sample) == "`y` is [3, 2, 2]"
    slim, detail = fold_constants(model, sample)
    assert "left out" not in detail
    for folded in (kept, slim):
        found = run_sample(folded, {"x": (3, 4)})
        assert found is not None
        np.testing.assert_array_equal(found.outputs["y"], sample.outputs["y"])


def test_folding_that_grows_the_model_leaves_large_constants_out() -> None:
    nodes = [
        helper.make_node("Expand", ["row", "sizes"], ["large"], name="expand"),
        helper.make_node("Add", ["small", "small"], ["twice"], name="twice"),
        helper.make_node("Mul", ["large", "twice"], ["product"], name="product"),
        helper.make_node("Add", ["x", "product"], ["y"], name="sum"),
    ]
    constants = [
        models.weights("row", 1, 2000),
        models.constant("sizes", [20_000, 2000], "int64"),
        models.constant("small", [2.0]),
    ]
    x = models.tensor("x", 20_000, 2000)
    model = models.model(nodes, [x], [models.tensor("y", 20_000, 2000)], constants)
    slim, detail = fold_constants(model)
    assert "large constants left out: the model would grow from 0 to 1" in detail
    assert slim.ByteSize() < 2**20
    assert "Expand" in [node.op_type for node in slim.graph.node]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [("value", "values of output `y` would change"), ("failure", "onnxslim failed with RuntimeError: broken")],
)
def test_what_folding_breaks_is_not_kept(damage: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slim(model: onnx.ModelProto, **_options: object) -> onnx.ModelProto:
        if damage == "failure":
            raise RuntimeError("broken")
        model.graph.initializer[0].CopyFrom(models.constant("a", [1, 3]))
        return model

    monkeypatch.setattr(onnxslim, "slim", slim)
    model = _with_constants()
    kept, detail = fold_constants(model, run_sample(model, {"x": (3, 2)}))
    assert kept is model
    assert detail == f"skipped: {problem}"


def test_what_onnx_runtime_cannot_run_is_not_compared() -> None:
    node = helper.make_node("Unknown", ["x"], ["y"], domain="mine")
    model = models.model([node], [models.tensor("x", 2)], [models.tensor("y", 2)], domains=["mine"])
    assert run_sample(model, {"x": (2,)}) is None


def test_a_sample_that_would_fill_the_memory_is_not_run() -> None:
    """4,000 million numbers are 16 GB, of which the model says nothing."""
    nodes = [
        helper.make_node("Range", ["zero", "count", "one"], ["ramp"]),
        helper.make_node("ReduceSum", ["ramp"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    numbers = [models.constant(name, value) for name, value in (("zero", 0), ("count", 4e9 * 8), ("one", 1))]
    model = models.model(nodes, [models.tensor("x", 2)], [models.tensor("y", 2)], numbers)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run_sample(model, {"x": (2,)}) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1024 * 1024


@pytest.mark.parametrize("seed", [0, 1])  # sets of the two names have opposite orders
def test_a_dimension_that_two_inputs_share_has_the_first_inputs_name_in_every_process(
    seed: int, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["s"], "sum"), helper.make_node("Relu", ["s"], ["y"], "relu")]
    inputs = [models.tensor("a", "unk__330", 21), models.tensor("b", "unk__331", 21)]
    models.save(models.model(nodes, inputs, [models.tensor("y", "unk__332", 21)]), tmp_path / "m.onnx")
    code = (
        "import sys; from pathlib import Path; from trtkit.sources.onnx_file import read_model; "
        "from trtkit.network.onnx.folding import dimension_aliases, fold_constants; "
        "from trtkit.network.onnx.io import graph_inputs; model, _ = fold_constants(read_model(Path(sys.argv[1]))); "
        "print([spec.shape[0] for spec in graph_inputs(model)], dimension_aliases(model))"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "m.onnx")]
    ran = subprocess.run(
        words, env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "['unk__330', 'unk__330'] {'unk__331': 'unk__330'}"


@pytest.mark.parametrize(("count", "kept"), [(10, 1), (450, 450)])
def test_equal_constants_are_merged_unless_too_many_have_their_shape(count: int, kept: int) -> None:
    nodes = [
        helper.make_node("Mul" if index % 2 else "Add", [f"x{index}", f"c{index}"], [f"x{index + 1}"], name=f"n{index}")
        for index in range(count)
    ]
    constants = [models.constant(f"c{index}", [0.5, 2.0]) for index in range(count)]
    model = models.model(nodes, [models.tensor("x0", 2)], [models.tensor(f"x{count}", 2)], constants)
    slim, detail = fold_constants(model, run_sample(model, {"x0": (2,)}))
    assert detail == f"{count} -> {count} nodes"
    assert len(slim.graph.initializer) == kept
