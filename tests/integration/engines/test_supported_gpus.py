"""Unsupported GPUs are refused before a plan is read."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support import tiny_llm
from tests.support.models import classifier, save
from trtkit import LLM, open_model
from trtkit.backends import Gpu, load_backend, runs_on, supported_gpus
from trtkit.builder.build import BuildResult, build_bundle
from trtkit.bundle.bundle import Bundle, open_bundle
from trtkit.cli import build, doctor
from trtkit.config.load import config_for_source
from trtkit.errors import BackendError
from trtkit.jobs.runner import new_runner
from trtkit.planning.gpus import planned_gpus
from trtkit.runtime import device as devices
from trtkit.runtime.loaded_engine import LoadedEngine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated

SUPPORTED = "7.5, 8.0 (untested), 8.6, 8.9 and 12.x"
HOPPER = re.escape(f"`tensorrt_rtx` runs on GPUs of compute capability {SUPPORTED}; host memory has 9.0")


@pytest.fixture(scope="module")
def ada(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A classifier for compute capability 8.9."""
    folder = tmp_path_factory.mktemp("ada")
    config = config_for_source("onnx", save(classifier(), folder / "model.onnx"), ["target=sm89"])
    return build_bundle(config, folder / "bundle", new_runner(), use_cache=False).bundle


@pytest.mark.parametrize(
    ("capability", "is_supported"), [(70, False), (75, True), (87, False), (90, False), (103, False)]
)
def test_rtx_runs_on_the_generations_that_it_knows(capability: int, is_supported: bool) -> None:
    assert runs_on("tensorrt_rtx", capability) == is_supported
    assert runs_on("tensorrt_rtx", 120)
    assert runs_on("tensorrt_rtx", 121)
    assert runs_on("tensorrt", capability)
    assert supported_gpus("tensorrt") == ""


def test_a_gpu_of_another_generation_is_refused_before_the_plan_is_read(
    gpu: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(tiny_llm.build(tmp_path, "m"))
    gpu.device.compute_capability = 90
    monkeypatch.setattr(Bundle, "check_files", lambda _: pytest.fail("files were read"))
    with pytest.raises(BackendError, match=HOPPER):
        LLM(bundle, runtime="auto")
    assert devices.find_device_for("tensorrt_rtx") is None


def test_an_engine_for_another_gpu_is_refused(ada: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(ada)
    gpu.device.compute_capability = 86
    with pytest.raises(BackendError, match=r"the engine was built for compute capability 8\.9; host memory has 8\.6"):
        open_model(ada, "tensorrt")
    with pytest.raises(BackendError, match=r"cannot run on this GPU, which has compute capability 8\.6"):  # rule 29
        LoadedEngine(load_backend("tensorrt_rtx"), ada.engine_path(), gpu.device.stream())
    gpu.device.compute_capability = 90
    with pytest.raises(BackendError, match=HOPPER):
        open_model(ada, "auto")
    gpu.device.compute_capability = 89
    open_model(ada, "tensorrt")


def test_an_engine_of_another_version_is_refused(ada: Bundle, gpu: Simulated) -> None:
    installed, backend = ada.manifest.backend.version, ada.manifest.backend.model_copy(update={"version": "1.6.0"})
    older = replace(ada, manifest=ada.manifest.model_copy(update={"backend": backend}))
    gpu.plans.add(older)
    with pytest.raises(BackendError, match=rf"built with tensorrt_rtx 1\.6\.0; {re.escape(installed)} is installed"):
        open_model(older, "tensorrt")
    with pytest.raises(BackendError, match=r"was built with version 1\.6\.0, the library has"):  # rule 29a
        LoadedEngine(load_backend("tensorrt_rtx"), older.engine_path(), gpu.device.stream())


def test_doctor_names_a_gpu_that_the_default_library_does_not_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtkit.backends.list_gpus", lambda: (Gpu("NVIDIA H100", 81559, 90, "580.1"),))
    checks = {check.name: check.description for check in doctor._gpus()}
    text = f"runs no engines of tensorrt_rtx, which takes compute capability {SUPPORTED}"
    assert checks["GPU"] == f"NVIDIA H100 (sm90, 81559 MiB): {text}"


@pytest.mark.parametrize(("capability", "is_supported"), [(90, False), (89, True)])
def test_build_names_a_gpu_that_the_engine_does_not_run_on(
    capability: int,
    is_supported: bool,
    ada: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("trtkit.backends.list_gpus", lambda: (Gpu("NVIDIA H100", 81559, capability, "580.1"),))
    build._render(BuildResult(ada, "built"))
    text = f"note: NVIDIA H100 runs no engines of tensorrt_rtx, which takes compute capability {SUPPORTED}"
    assert (text in " ".join(capsys.readouterr().out.split())) != is_supported


def test_the_planner_names_the_libraries_of_a_gpu_by_the_same_rule() -> None:
    libraries = {gpu.key: gpu.backends for gpu in planned_gpus()}
    assert libraries["h100"] == ("tensorrt",)
    assert {"tensorrt_rtx" in libraries[name] for name in ("l4", "rtx5090")} == {True}
    for gpu in planned_gpus():
        assert ("tensorrt_rtx" in gpu.backends) == runs_on("tensorrt_rtx", gpu.compute_capability), gpu
