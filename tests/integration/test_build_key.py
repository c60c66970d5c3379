"""The build key depends on the request and the sources' bytes, and on nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from tests.support import models
from trtkit.builder.build_inputs import gather_inputs
from trtkit.config import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from pathlib import Path

TORCH = """\
source:
  torch:
    factory: package.factory:make
    checkpoint: weights.safetensors
    inputs: {x: {shape: [2, 3]}}
"""


@pytest.fixture
def onnx_config(workspace: Path) -> str:
    models.save(models.classifier(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    return "m.yaml"


@pytest.fixture
def torch_config(workspace: Path) -> str:
    (workspace / "package").mkdir()
    for file in ("__init__.py", "factory.py", "layers.py"):
        (workspace / "package" / file).touch()
    save_file({"weight": torch.ones(2)}, workspace / "weights.safetensors")
    (workspace / "m.yaml").write_text(TORCH)
    return "m.yaml"


def key(config: str, *overrides: str, target: str | None = None) -> str:
    return gather_inputs(load_config(config, overrides, target), new_runner()).key


@pytest.mark.parametrize(
    "override",
    [
        "precision=fp16",
        "keep_fp32=[pool]",
        "io_types=fp16",
        "profiles.0.batch=[1, 2, 4]",
        "build.optimization_level=1",
        "fold_constants=false",
        "name=other",
        "target=sm86",
    ],
)
def test_another_wish_is_another_build(override: str, onnx_config: str) -> None:
    assert key(onnx_config, override) != key(onnx_config)


def test_another_weight_is_another_build(workspace: Path, onnx_config: str) -> None:
    before = key(onnx_config)
    models.save(models.classifier(seed=7), workspace / "m.onnx")
    assert key(onnx_config) != before


def test_another_weight_in_external_data_is_another_build(workspace: Path, onnx_config: str) -> None:
    models.save_external(models.matmul(), workspace / "m.onnx")
    before = key(onnx_config)
    (workspace / "m.onnx.data").write_bytes(bytes(48))
    assert key(onnx_config) != before


def test_moved_touched_or_described_model_is_the_same_build(workspace: Path, onnx_config: str) -> None:
    before = key(onnx_config)
    (workspace / "m.onnx").rename(workspace / "moved.onnx")
    os.utime(workspace / "moved.onnx", (0, 0))
    assert key(onnx_config, "source.onnx=moved.onnx", "description=the same") == before


def test_target_counts_by_its_hardware_not_by_its_name(onnx_config: str) -> None:
    assert key(onnx_config, target="sm89") == key(onnx_config, "target=sm89") != key(onnx_config, target="sm86")


def test_moved_checkpoint_is_the_same_build(workspace: Path, torch_config: str) -> None:
    before = key(torch_config)
    (workspace / "weights.safetensors").rename(workspace / "moved.safetensors")
    assert key(torch_config, "source.torch.checkpoint=moved.safetensors") == before


def test_changed_checkpoint_is_another_build(workspace: Path, torch_config: str) -> None:
    before = key(torch_config)
    save_file({"weight": torch.zeros(2)}, workspace / "weights.safetensors")
    assert key(torch_config) != before


def test_changed_code_beside_the_factory_is_another_build(workspace: Path, torch_config: str) -> None:
    before = key(torch_config)
    (workspace / "package/layers.py").write_text("EPS = 1e-6\n")
    assert key(torch_config) != before
