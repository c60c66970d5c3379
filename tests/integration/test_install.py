"""The wheel in a clean environment: each extra is complete for its task; missing packages are reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support import models, tiny_llm
from trtkit.extras import EXTRAS

ROOT = Path(__file__).parents[2]
# Without the last, each command would compile all that it imports once more: uv leaves that to the first import.
OF_THE_TESTS = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
FIND_LINKS = [word for place in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", place)]
MODULE = "import torch\n\n\ndef make():\n    return torch.nn.Conv2d(3, 4, 3)\n"
CONFIGS = {
    "onnx.yaml": "source: {onnx: m.onnx}\n",
    "fp16.yaml": "source: {onnx: m.onnx}\nprecision: fp16\n",
    "torch.yaml": "source: {torch: {factory: 'factory:make', inputs: {x: {shape: [1, 3, 8, 8]}}}}\n",
    "llm.yaml": "source: {hf: llm}\nllm: {max_sequence_length: 128, max_prefill_length: 32, max_batch_size: 2}\n",
}
ONNX = ["inspect m.onnx", "build onnx.yaml", "inspect bundles/onnx", "plan bundles/onnx --gpu h200"]
LLM = ["build llm.yaml", "inspect bundles/llm", "verify bundles/llm", "plan bundles/llm --gpu h200"]
GENERATE = "generate bundles/llm --prompt hello --max-tokens 4"
# Extras, and what they promise.
PROMISES = {
    "rtx,torch": ["build torch.yaml", *ONNX],
    "rtx,verify": [*ONNX, "verify bundles/onnx", "bench bundles/onnx --compare onnxruntime --unverified"],
    "rtx,verify,report": ["build onnx.yaml", "verify bundles/onnx --html report.html"],
    "rtx,quantize": ["build fp16.yaml", "quantize onnx.yaml --method int8 --calib data.npz -o q8.onnx"],
    "rtx,llm": [*LLM, GENERATE, "eval bundles/llm --perplexity text.txt --windows 1"],
    "rtx,llm,quantize": ["quantize llm.yaml --method int8_wo -o llm-int8"],
    "rtx,onnx,triton": ["build onnx.yaml", "deploy bundles/onnx --as tensors --repository repository"],
    "rtx,onnx,kernels": ["plugins check pillar_scatter"],
    "all": [*ONNX, *LLM, "verify bundles/onnx", "doctor"],
}


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds the wheel, and a folder of models to work in."""

    root: Path
    workspace: Path

    def run(self, line: str, code: int = 0) -> str:
        words = [str(self.root / "bin" / "trtkit"), *line.split()]
        clean = {key: value for key, value in os.environ.items() if key not in OF_THE_TESTS}
        ran = subprocess.run(words, cwd=self.workspace, env=clean, capture_output=True, text=True, check=False)
        assert "Traceback" not in ran.stdout + ran.stderr
        assert ran.returncode == code, f"{line}\n{ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _uv("build", "--wheel", "--out-dir", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    models.save(models.classifier(), folder / "m.onnx")
    tiny_llm.save(folder / "llm")
    (folder / "factory.py").write_text(MODULE)
    np.savez(folder / "data.npz", images=np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32))
    (folder / "text.txt").write_text(tiny_llm.TEXT * 20)
    for name, text in CONFIGS.items():
        (folder / name).write_text(text)
    return folder


def _uv(*words: object) -> None:
    command = [sys.executable, "-m", "uv", *(str(word) for word in words), "--quiet"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def _install(wheel: Path, extras: str, root: Path, python: str = sys.executable) -> None:
    _uv("venv", "--python", python, root)
    words = ["--python", root / "bin" / "python", "-c", ROOT / "constraints.txt", *FIND_LINKS]
    _uv("pip", "install", *words, f"{wheel}[{extras}]")


def _interpreter(version: str) -> str:
    """Return a Python of this version: on PATH, or pyenv's. Skips the test if there is none."""
    for path in (shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")):
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(path)
    pytest.skip(f"there is no Python {version} here")


def test_extras_for_onnx_build_and_say_what_verifying_needs(wheel: Path, workspace: Path, tmp_path: Path) -> None:
    """The one extra that CI tries: what works without torch works, and what needs it names the extra that has it."""
    _install(wheel, "rtx,onnx", tmp_path / "env")
    environment = Environment(tmp_path / "env", workspace)
    assert "engines can be built on this machine" in environment.run("doctor")
    for line in ONNX:
        environment.run(line)
    for line in ("verify bundles/onnx", "bench bundles/onnx"):
        assert "this needs `torch`, which is not installed\nfix: pip install 'trtkit[torch,verify]'" in environment.run(
            line, code=1
        )
    said = environment.run("build fp16.yaml", code=1)
    assert "this needs `nvidia-modelopt`, which is not installed\nfix: pip install 'trtkit[quantize]'" in said


@pytest.mark.slow
@pytest.mark.parametrize("extras", PROMISES)
def test_an_extra_brings_all_that_it_promises(extras: str, wheel: Path, workspace: Path, tmp_path: Path) -> None:
    _install(wheel, extras, tmp_path / "env")
    environment = Environment(tmp_path / "env", workspace)
    for line in PROMISES[extras]:
        environment.run(line)


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.12", "3.13"])
def test_engines_are_built_on_newer_pythons(python: str, wheel: Path, workspace: Path, tmp_path: Path) -> None:
    _install(wheel, "rtx,onnx", tmp_path / "env", _interpreter(python))
    environment = Environment(tmp_path / "env", workspace)
    for line in ("doctor", *ONNX):
        environment.run(line)


@pytest.mark.slow
def test_uvx_runs_the_wheel_without_installing_it(wheel: Path, workspace: Path, tmp_path: Path) -> None:
    """As `uvx --from WHEEL trtkit ...` does, which is `uv tool run`."""
    words = ["tool", "run", "--python", sys.executable, "-c", ROOT / "constraints.txt", *FIND_LINKS]
    command = [sys.executable, "-m", "uv", *map(str, words), "--from", f"{wheel}[rtx,onnx]", "trtkit"]
    clean = {key: value for key, value in os.environ.items() if key not in OF_THE_TESTS}
    clean["UV_TOOL_DIR"] = str(tmp_path / "tools")
    for line in ("--version", "build m.onnx -o bundles/uvx", "inspect bundles/uvx --json"):
        ran = subprocess.run([*command, *line.split()], cwd=workspace, env=clean, capture_output=True, text=True)  # noqa: PLW1510
        assert ran.returncode == 0, ran.stderr
    assert (workspace / "bundles" / "uvx" / "manifest.json").is_file()


@pytest.mark.slow
def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    _uv("build", "--out-dir", tmp_path, ROOT)
    (made,) = tmp_path.glob("*.whl")
    assert made.name == wheel.name
    names = [set(zipfile.ZipFile(path).namelist()) for path in (made, wheel)]
    assert names[0] == names[1]
    assert len(list(tmp_path.glob("*.tar.gz"))) == 1


def test_the_constraints_resolve_from_the_public_index(tmp_path: Path) -> None:
    """A local wheel of torch asks for less than the public one, so the machine's own indexes must not count."""
    words = [
        "--python-version",
        "3.13",
        "-c",
        ROOT / "constraints.txt",
        "--all-extras",
        "--group",
        "dev",
        "--no-config",
    ]
    _uv("pip", "compile", *words, "-o", tmp_path / "resolved.txt", ROOT / "pyproject.toml")
    assert "torch==2.13.0\n" in (tmp_path / "resolved.txt").read_text()


def test_the_wheel_holds_no_tests_and_no_broken_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert not [name for name in names if "test_" in name or "/tests/" in name]
    assert "trtkit/_plugins/nms/op.py" in names
    assert "](docs/" not in metadata
    assert "Programming Language :: Python :: 3.13" in metadata


def test_every_optional_module_is_in_an_extra() -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    for extras in EXTRAS.values():
        for extra in extras.split(","):
            assert f"\n{extra} = [" in declared
