"""`trtkit build` of quantized vision models: sizes of engines, and what their bundles depend on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.support import models
from tests.support.quantized_vision import pictures, small
from trtkit.bundle.bundle import open_bundle
from trtkit.bundle.known import read_known
from trtkit.deployment.make_known import ensure_known
from trtkit.quantization_methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran


def test_the_engine_shrinks_as_its_weights_do(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    models.save(models.model(*product_of(2048)), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 4, 8]}]\n")
    sizes = {}
    for method in ("int8_wo", "none"):
        words = () if method == "none" else ("--set", f"quantize.method={method}")
        ran = trtkit("build", "m.yaml", "-o", method, "--json", *words)
        assert ran.code == 0, ran.err
        sizes[method] = Path(method, "engines/m.plan").stat().st_size
    assert sizes["none"] - sizes["int8_wo"] == pytest.approx(3 * 2048 * 2048, rel=0.03)


def product_of(size: int) -> tuple[Any, ...]:
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return (
        [node],
        [models.tensor("x", "batch", size)],
        [models.tensor("y", "batch", size)],
        [models.weights("w", size, size)],
    )


def test_a_bundle_says_what_was_quantized_and_follows_its_data(
    workspace: Path, trtkit: Callable[..., Ran], own_cache: Path
) -> None:
    models.save(small(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text(
        "source: {onnx: m.onnx}\nprofiles: [{batch: [1, 4, 8]}]\nquantize: {method: int8, calibration: {data: a.npz}}\n"
    )
    for name, seed in (("a", 0), ("same", 0), ("other", 1)):
        np.savez(workspace / f"{name}.npz", images=pictures(8, seed))
    first = trtkit("build", "m.yaml", "-o", "out", "--json")
    assert first.code == 0, first.err
    manifest = first.json()["manifest"]
    (step,) = (step for step in manifest["steps"] if step["name"] == "quantize")
    assert step["detail"] == "int8: 7 activations, 5 weights with 100% of all numbers"
    assert manifest["config"]["quantize"]["method"] == "int8"
    origins = []
    for name in ("same", "other"):
        asked = ("--set", f"quantize.calibration.data={name}.npz")
        origins.append(trtkit("build", "m.yaml", "-o", "out", "--json", *asked).json()["origin"])
    assert origins == ["unchanged", "built"]
    ran = trtkit("verify", "out", "--json")
    assert ran.code == 0, ran.out
    assert json.loads(ran.out)["tolerance"] == 0.4


@pytest.mark.parametrize("method", ["int8", "int8_wo", "none"])
def test_known_answers_may_differ_as_much_as_rounding_does(
    workspace: Path, trtkit: Callable[..., Ran], method: str
) -> None:
    """ONNX Runtime, which multiplies integers if it may, gives the known answer within its tolerance."""
    models.save(small(), workspace / "m.onnx")
    quantize = f"quantize: {{method: {method}, calibration: {{data: a.npz}}}}\n" if method != "none" else ""
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 4, 8]}]\n" + quantize)
    np.savez(workspace / "a.npz", images=pictures(8, 0))
    assert trtkit("build", "m.yaml", "-o", "out").code == 0
    ensure_known(open_bundle(workspace / "out"), None, lambda _: None)
    bundle = open_bundle(workspace / "out")
    known = read_known(bundle)
    assert known is not None
    assert known.tolerance == (METHODS["int8"].tolerance if method == "int8" else pytest.approx(1e-4))
    options = onnxruntime.SessionOptions()
    if method != "int8":  # it would round activations too
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(bundle.onnx_path()), options, providers=["CPUExecutionProvider"])
    for name, value in zip(known.outputs, session.run(list(known.outputs), dict(known.inputs)), strict=True):
        error = np.linalg.norm(value - known.outputs[name]) / np.linalg.norm(known.outputs[name])
        assert error <= known.tolerance


@pytest.fixture
def quantized_file(workspace: Path, trtkit: Callable[..., Ran]) -> Path:
    """The small model in int8 as `trtkit quantize` writes it, calibrated on pictures; `m.yaml` is its config."""
    models.save(small(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 4, 8]}]\n")
    np.savez(workspace / "a.npz", images=pictures(8))
    ran = trtkit("quantize", "m.yaml", "--method", "int8", "--calib", "a.npz", "-o", "q")
    assert ran.code == 0, ran.err
    assert "loss on the calibration data: relative RMS error" in ran.out
    return workspace / "q/model.onnx"


def verified(trtkit: Callable[..., Ran], *words: str) -> dict[str, Any]:
    ran = trtkit("verify", *words, "--json", "--no-layers")
    return {"code": ran.code, **json.loads(ran.out)}


def test_both_ways_to_int8_are_judged_alike(quantized_file: Path, trtkit: Callable[..., Ran]) -> None:
    by_file = verified(trtkit, "m.yaml", "--set", f"source.onnx={quantized_file}")
    asked = ("--set", "quantize.method=int8", "--set", "quantize.calibration.data=a.npz")
    by_key = verified(trtkit, "m.yaml", *asked)
    assert by_file["code"] == by_key["code"] == 0
    same = ("reference", "tolerance", "samples", "outputs", "corners", "loss")
    assert {key: by_file[key] for key in same} == {key: by_key[key] for key in same}
    assert by_file["reference"] == "ONNX Runtime on m.onnx"
    assert by_file["stored"]["reference"] == "ONNX Runtime on model.onnx, without fusion"
    assert by_file["stored"]["passed"]


def test_the_bundle_of_a_quantized_file_is_compared_with_the_float_model_as_long_as_it_is_there(
    quantized_file: Path, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    assert trtkit("build", "m.yaml", "--set", f"source.onnx={quantized_file}", "-o", "out").code == 0
    assert verified(trtkit, "out")["reference"] == "ONNX Runtime on m.onnx"
    models.save(models.matmul(), workspace / "m.onnx")
    changed = verified(trtkit, "out")
    assert changed["code"] == 0
    assert changed["reference"] == (
        "ONNX Runtime on model.onnx, without fusion; not compared with the float model: "
        "the source has changed since the build"
    )


@pytest.mark.parametrize("node", ["stem/conv", "block/conv1", "block/conv2", "head/hidden", "head/out"])
def test_a_quantized_file_with_one_wrong_scale_fails(
    node: str, quantized_file: Path, trtkit: Callable[..., Ran]
) -> None:
    models.save(with_wrong_scale(onnx.load(quantized_file), node), quantized_file)
    ran = trtkit("verify", "m.yaml", "--set", f"source.onnx={quantized_file}", "--no-layers")
    assert ran.code == 3, ran.out
    assert "fix: quantize the float model again" in " ".join(ran.out.split())


def with_wrong_scale(model: onnx.ModelProto, product: str) -> onnx.ModelProto:
    """Return the model with the scale of one product's weight times 1.5."""
    (node,) = (node for node in model.graph.node if node.name == product)
    (step,) = (step for step in model.graph.node if step.output[0] == node.input[1])
    (scale,) = (tensor for tensor in model.graph.initializer if tensor.name == step.input[1])
    values = onnx.numpy_helper.to_array(scale) * np.float32(1.5)
    scale.CopyFrom(onnx.numpy_helper.from_array(values, scale.name))
    return model


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_quantized_file_of_another_tool_is_judged_by_its_nodes(
    precision: str, quantized_file: Path, trtkit: Callable[..., Ran]
) -> None:
    (quantized_file.parent / "quantization.json").unlink()
    report = verified(trtkit, str(quantized_file), "--precision", precision, "--set", "profiles=[{batch: [1, 4, 8]}]")
    assert (report["code"], report["tolerance"], report["task"]["required"]) == (0, 0.4, 0.0)
    assert report["reference"] == "ONNX Runtime on model.onnx, without fusion"


def test_a_model_that_loses_too_much_says_what_to_do(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    models.save(small(), workspace / "m.onnx")
    np.savez(workspace / "a.npz", images=pictures(8))
    asked = ("--set", "quantize.method=int8", "--set", "quantize.calibration.data=a.npz", "--no-layers")
    ran = trtkit("verify", "m.onnx", *asked, "--set", "profiles=[{batch: [1, 4, 8]}]", "--inputs", "a.npz")
    assert ran.code == 0, ran.out
    loose = (
        "--set",
        "quantize.algorithm=max",
        "--set",
        "quantize.keep=0",
        "--set",
        "verify.max_relative_rms_error=1e-6",
    )
    ran = trtkit("verify", "m.onnx", *asked, *loose, "--set", "profiles=[{batch: [1, 4, 8]}]")
    assert ran.code == 3
    assert "fix: leave more products unquantized (`quantize.keep`, `quantize.exclude`)" in " ".join(ran.out.split())
