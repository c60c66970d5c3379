"""`open_model`: a bundle as a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support import models
from trtkit.errors import BundleError, ExecutionError
from trtkit.jobs.runner import new_runner
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnx

RUNTIMES = ["reference", "onnxruntime"]


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """Build a bundle of a model."""
    from trtkit.builder.build import build_bundle
    from trtkit.config.load import config_for_source

    def make(model: onnx.ModelProto, *overrides: str) -> Path:
        path = models.save(model, tmp_path / "model.onnx")
        build_bundle(config_for_source("onnx", path, overrides), tmp_path / "bundle", new_runner())
        return tmp_path / "bundle"

    return make


def test_both_runtimes_compute_the_networks_formula(build: Callable[..., Path]) -> None:
    bundle = build(models.matmul())
    x = np.array([[1, 0, 2], [0, -1, 0]], np.float32)
    want = x @ np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    for runtime in RUNTIMES:
        got = open_model(bundle, runtime)(x)  # type: ignore[arg-type]
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want)


def test_a_model_of_several_inputs_takes_them_by_name(build: Callable[..., Path]) -> None:
    bundle = build(models.two_inputs(), "profiles=[{batch: [1, 1, 4], tokens: [1, 2, 4]}]")
    inputs: dict[str, Any] = {"ids": np.array([[3, 4]]), "mask": np.array([[0.5, 2]], np.float32)}
    for runtime in RUNTIMES:
        model = open_model(bundle, runtime)  # type: ignore[arg-type]
        assert model.run(inputs)["y"].tolist() == [[1.5, 8.0]]
        with pytest.raises(ExecutionError) as error:
            model(inputs["mask"])
        assert str(error.value) == "the model has 2 inputs: ids, mask\nfix: pass them to `run`"


def test_a_network_that_is_not_the_one_built_is_refused(build: Callable[..., Path]) -> None:
    bundle = build(models.matmul())
    onnx_file = bundle / "network" / "model.onnx"
    onnx_file.write_bytes(onnx_file.read_bytes() + b" ")
    with pytest.raises(BundleError) as error:
        open_model(bundle)
    assert str(error.value) == (
        f"{onnx_file}: the file has changed since the build: SHA-256 mismatch\nfix: build the bundle again"
    )
