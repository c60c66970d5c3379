"""The CI script that checks a model for TensorRT on every commit, and its GitHub action."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support import models

FOLDER = Path(__file__).parents[2] / "examples" / "ci"


def check(folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Run the script in a folder; return its exit code, its report and its comment."""
    command = [sys.executable, str(FOLDER / "check.py"), *words]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    comment = (folder / "trtkit-report.md").read_text(encoding="utf-8")
    assert ran.stdout == comment + "\n"
    return ran.returncode, json.loads((folder / "trtkit-report.json").read_text(encoding="utf-8")), comment


def test_a_model_is_compared_with_the_commit_before(tmp_path: Path) -> None:
    models.save(models.classifier(), tmp_path / "m.onnx")
    (tmp_path / "half.yaml").write_text("source: {onnx: m.onnx}\nprecision: fp16\n")
    before = {"figures": {"precision": "fp32", "error, relative RMS": 1e-7, "fits h100": True, "engine, MiB": 1.0}}
    (tmp_path / "before.json").write_text(json.dumps(before))
    code, report, comment = check(tmp_path, "half.yaml", "--gpu", "h100", "--before", "before.json")
    assert (code, report["fit"], report["error"]) == (0, True, "")
    assert comment.startswith("### `half.yaml` is fit for TensorRT\n")
    assert "| precision | fp16 | fp32 | changed |" in comment
    assert "| fits h100 | yes | yes |  |" in comment
    assert re.search(r"^\| engine, MiB \| [\d.]+ \| 1.0 \| [-+][\d.]+% \|$", comment, re.MULTILINE)
    assert re.search(r"^\| error, relative RMS \| [\d.e-]+ \| 1e-07 \| [\d.e+]+ times \|$", comment, re.MULTILINE)
    assert re.search(r"^\| a call on h100 at best, ms \| [\d.e-]+ \|  \|  \|$", comment, re.MULTILINE)


def test_a_model_that_does_not_build_is_not_fit(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_text("not a model")
    code, report, comment = check(tmp_path, "bad.onnx", "--before", "none.json")
    assert (code, report["fit"]) == (1, False)
    assert "not an ONNX model" in report["error"]
    assert comment.startswith("### `bad.onnx` is not fit for TensorRT\n")


@pytest.mark.slow
def test_a_model_that_differs_from_its_original_is_not_fit(tmp_path: Path) -> None:
    """Weights of 1e-9 are zero in fp16."""
    small = models.model(
        [models.helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        [models.tensor("x", "batch", 3)],
        [models.tensor("y", "batch", 4)],
        [models.numpy_helper.from_array(np.full((3, 4), 1e-9, np.float32), "w")],
    )
    models.save(small, tmp_path / "m.onnx")
    (tmp_path / "half.yaml").write_text("source: {onnx: m.onnx}\nprecision: fp16\n")
    code, report, comment = check(tmp_path, "half.yaml")
    assert (code, report["fit"]) == (1, False)
    assert "it differs from the original" in comment


def test_the_action_calls_the_script_as_it_is() -> None:
    action = yaml.safe_load((FOLDER / "action.yml").read_text(encoding="utf-8"))
    script = "\n".join(step.get("run", "") for step in action["runs"]["steps"])
    used = set(re.findall(r"check\.py.*", script)[0].split()) & set(re.findall(r"--[a-z]+", script))
    options = set(re.findall(r'"(--[a-z]+)"', (FOLDER / "check.py").read_text(encoding="utf-8")))
    assert used == {"--gpu", "--before"} <= options
    assert set(re.findall(r"inputs\.([a-z]+)", (FOLDER / "action.yml").read_text())) == set(action["inputs"])
    subprocess.run(["bash", "-n", "-c", script], check=True)
