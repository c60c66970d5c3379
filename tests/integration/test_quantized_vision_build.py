"""`trtkit build` of quantized vision models: how far engines shrink, what their bundles follow from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from tests import models
from tests.quantized_vision import pictures, small

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
