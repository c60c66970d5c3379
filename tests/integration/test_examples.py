"""The commands of every README under examples/ run in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

ROOT = Path(__file__).parents[2]
TOPICS = sorted(readme.parent.name for readme in (ROOT / "examples").glob("*/README.md"))


def blocks(readme: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run_script(script: str, folder: Path) -> str:
    """Run `script` in `folder`, where `examples` leads to the checkout's, up to its first failure."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["bash", "-ec", script]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def run_readme(topic: str, folder: Path) -> str:
    """Run an example's commands in order; what they print last must be what its README shows."""
    readme = ROOT / "examples" / topic / "README.md"
    printed = run_script("\n".join(blocks(readme, "bash")), folder)
    shown = "".join(blocks(readme, "text"))
    assert printed.endswith(shown)
    return printed


def test_every_example_has_commands() -> None:
    wanted = {"classification", "ocr", "llm-chat", "custom-decoder", "custom-op", "detr3d", "serving"}
    wanted |= {"ci", "distillation", "speculation"}
    assert set(TOPICS) == wanted
    index = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[([\w-]+)\]\(\1\) \|", index, re.MULTILINE)) == wanted
    assert [topic for topic in TOPICS if not blocks(ROOT / "examples" / topic / "README.md", "bash")] == []


@pytest.mark.slow
@pytest.mark.parametrize("topic", sorted(set(TOPICS) - {"classification", "ocr", "distillation", "speculation"}))
def test_an_example_prints_what_its_readme_shows(topic: str, tmp_path: Path) -> None:
    run_readme(topic, tmp_path)


@pytest.mark.slow
def test_the_classification_example_verifies_its_fp16_bundle(tmp_path: Path) -> None:
    printed = run_readme("classification", tmp_path)
    assert "PASS: classifier in fp16" in printed
    assert "285, 967" in printed
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.slow
def test_the_ocr_example_reads_the_same_text_in_both_runtimes(tmp_path: Path) -> None:
    printed = run_readme("ocr", tmp_path)
    (text,) = blocks(ROOT / "examples" / "ocr" / "README.md", "text")
    assert "Region-based segmentation\nLet us first determine markers of the coins and the\n" in printed
    again = blocks(ROOT / "examples" / "ocr" / "README.md", "bash")[-1].rstrip() + " --runtime onnxruntime"
    assert run_script(again, tmp_path) == text


@pytest.mark.slow
def test_the_distillation_example_runs(tmp_path: Path) -> None:
    """With two steps of training; test_distillation.py and test_ternary.py test that it helps tiny models."""
    commands = "\n".join(blocks(ROOT / "examples" / "distillation" / "README.md", "bash"))
    for steps in ("--steps 64", "--steps 1200"):
        assert commands.count(steps) == 2
        commands = commands.replace(steps, "--steps 2")
    assert commands.count("--steps 400") == 1
    printed = run_script(commands.replace("--steps 400", "--steps 2"), tmp_path)
    assert printed.count("step 2 of 2") == 5
    assert printed.count("same top token") == 4
    assert "active blocks" in printed


@pytest.mark.slow
def test_the_speculation_example_runs(tmp_path: Path) -> None:
    """With little training; that guesses of a trained head come true is tested on a tiny model (test_train_head.py)."""
    *commands, compared = blocks(ROOT / "examples" / "speculation" / "README.md", "bash")
    script = "\n".join(commands)
    assert script.count("--steps 240") == 1
    printed = run_script(script.replace("--steps 240", "--steps 2 --tokens 4096"), tmp_path)
    assert "step 2 of 2" in printed
    guessing, plain = (run_script(command, tmp_path) for command in compared.splitlines())
    assert guessing == plain


def test_the_op_of_the_custom_op_example_is_unknown_without_its_folder(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, trtkit: Callable[..., Ran]
) -> None:
    monkeypatch.delenv("TRTKIT_PLUGINS", raising=False)
    run_script("python examples/custom-op/export.py radiance.onnx", workspace)
    ran = trtkit("inspect", "radiance.onnx")
    assert (ran.code, ran.out) == (1, "")
    assert "FourierFeatures" in ran.err
