"""The commands of every README under examples/ run, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READMES = sorted((ROOT / "examples").glob("*/README.md"))


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
    """Run the commands of an example's README in order; return what they print."""
    return run_script("\n".join(blocks(ROOT / "examples" / topic / "README.md", "bash")), folder)


def test_there_are_examples() -> None:
    assert [readme.parent.name for readme in READMES if not blocks(readme, "bash")] == []
    assert {"classification", "ocr"} <= {readme.parent.name for readme in READMES}


@pytest.mark.slow
def test_the_classification_example_verifies_its_fp16_bundle(tmp_path: Path) -> None:
    printed = run_readme("classification", tmp_path)
    assert "right: classifier in fp16" in printed
    assert "285, 967" in printed
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.slow
def test_the_ocr_example_reads_what_its_readme_shows_in_both_runtimes(tmp_path: Path) -> None:
    readme = ROOT / "examples" / "ocr" / "README.md"
    (text,) = blocks(readme, "text")
    assert "Region-based segmentation\nLet us first determine markers of the coins and the\n" in text
    assert run_readme("ocr", tmp_path).endswith(text)
    again = blocks(readme, "bash")[-1].rstrip() + " --runtime onnxruntime"
    assert run_script(again, tmp_path) == text
