"""Precision and I/O types are written into the network, and values stay correct."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.support import models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.fixture
def build(workspace: Path, trtkit: Callable[..., Ran]) -> Callable[..., Any]:
    """Build the classifier into `out` and return its bundle's network record and ONNX model."""
    models.save(models.classifier(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")

    def run(*overrides: str) -> tuple[Any, onnx.ModelProto]:
        words = [word for override in overrides for word in ("--set", override)]
        ran = trtkit("build", "m.yaml", "-o", "out", "--quiet", *words)
        assert ran.code == 0, ran.err
        return trtkit("inspect", "out", "--json").json(), onnx.load("out/network/model.onnx")

    return run


def types_of(found: Any, kind: str) -> Counter[str]:
    return Counter(layer["outputs"][0]["dtype"] for layer in found["network"]["layers"] if layer["type"] == kind)


def relative_rms(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - expected) / np.linalg.norm(expected))


def run_onnx(model: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images})[0]


def images() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((2, 3, 16, 16)).astype(np.float32)


def test_fp16_is_that_of_layers_and_weights_and_computes_the_same(build: Callable[..., Any]) -> None:
    found, model = build("precision=fp16")
    assert types_of(found, "CONVOLUTION") == types_of(found, "MATRIX_MULTIPLY") == {"fp16": 1}
    assert found["network"]["totals"]["weight_bytes"]["fp16"] == 2 * (8 * 3 * 9 + 5 * 8 + 5)
    assert found["network"]["inputs"][0]["dtype"] == "fp32", "I/O types are another key"
    assert "fp16 by AutoCast: 5 nodes in fp16, 0 in fp32" in str(found["manifest"]["steps"])
    assert 0 < relative_rms(run_onnx(model, images()), run_onnx(models.classifier(), images())) < 5e-3


def test_bf16_is_that_of_layers_and_weights(build: Callable[..., Any]) -> None:
    found, _ = build("precision=bf16")
    assert types_of(found, "CONVOLUTION") == types_of(found, "MATRIX_MULTIPLY") == {"bf16": 1}
    assert found["network"]["totals"]["weight_bytes"]["bf16"] == 2 * (8 * 3 * 9 + 5 * 8 + 5)


def test_kept_nodes_stay_in_fp32_between_fp16_inputs_and_outputs(build: Callable[..., Any]) -> None:
    found, _ = build("precision=fp16", "io_types=fp16", "keep_fp32=['head/*']")
    assert types_of(found, "CONVOLUTION") == {"fp16": 1}
    assert types_of(found, "MATRIX_MULTIPLY") == {"fp32": 1}
    assert "fp16 by AutoCast: 4 nodes in fp16, 1 in fp32 (1 Gemm)" in str(found["manifest"]["steps"])
    assert found["network"]["totals"]["weight_bytes"]["fp32"] >= 4 * 5 * 8
    assert [tensor["dtype"] for tensor in found["network"]["inputs"] + found["network"]["outputs"]] == ["fp16"] * 2


def test_io_types_change_inputs_and_outputs_only(build: Callable[..., Any]) -> None:
    found, model = build("io_types=fp16")
    assert [tensor["dtype"] for tensor in found["network"]["inputs"] + found["network"]["outputs"]] == ["fp16"] * 2
    assert types_of(found, "CONVOLUTION") == {"fp32": 1}
    got = run_onnx(model, images().astype(np.float16))
    assert got.dtype == np.float16
    assert relative_rms(got, run_onnx(models.classifier(), images())) < 2e-3


def test_io_types_leave_integers_alone(workspace: Path, build: Callable[..., Any]) -> None:
    models.save(models.two_inputs(), workspace / "m.onnx")
    found, _ = build("io_types=bf16", "profiles.0.tokens=[1, 4, 8]")
    types = {tensor["name"]: tensor["dtype"] for tensor in found["network"]["inputs"] + found["network"]["outputs"]}
    assert types == {"ids": "int64", "mask": "bf16", "y": "bf16"}


@pytest.mark.parametrize(("target", "gpus", "mask"), [("sm89", [89], 8), ("any", [89, 120, 121], 8 + 16 + 32)])
def test_fp8_model_builds_for_the_gpus_of_a_target_that_have_fp8(
    target: str, gpus: list[int], mask: int, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    models.save(models.fp8(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    ran = trtkit("build", "m.yaml", "--target", target, "--json")
    assert ran.code == 0, ran.err
    manifest = ran.json()["manifest"]
    assert manifest["target"]["compute_capabilities"] == gpus
    assert (workspace / "bundles/m/engines/m.plan").read_bytes()[32] == mask
    again = trtkit("build", "m.yaml", "--target", target, "--json").json()
    assert (again["origin"], again["manifest"]) == ("unchanged", manifest)
    shown = "any (sm89, sm120, sm121)" if target == "any" else target
    assert f"target {shown}" in " ".join(trtkit("build", "m.yaml", "--target", target).out.split())


# Byte 32 of an RTX plan is a mask of the targets that it was built for.
@pytest.mark.parametrize(
    ("target", "mask"), [("any", 0x7E), ("sm75", 1), ("sm80", 2), ("sm86", 4), ("sm120", 16), ("sm121", 32)]
)
def test_target_is_in_the_plan(target: str, mask: int, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    models.save(models.chain(2), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    assert trtkit("build", "m.yaml", "--target", target).code == 0
    assert (workspace / "bundles/m/engines/m.plan").read_bytes()[32] == mask


def test_what_tensorrt_cannot_build_is_told_in_its_words(workspace: Path, refuses: Callable[..., str]) -> None:
    models.save(models.matmul(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    message = refuses("build", "m.yaml", "--target", "sm75")
    assert message.startswith("TensorRT cannot build the network: ")
    assert "for Turing (SM75): FP32 GEMM is not supported" in message
    assert "cudaError" not in message
    assert message.endswith("\nfix: `trtkit inspect` lists the network's layers")
