"""One case of each exit code in docs/command-line.md and `trtkit --help`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import TRTKIT
from tests.support.bench_reports import timed, vision_report
from tests.support.models import classifier, save
from trtkit.benchmarking.report import report_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

    Run = Callable[..., Ran]

DOCS = Path(__file__).parents[2] / "docs/command-line.md"
# 130 and 143 are those of test_interrupt.py.
CODES = {0, 1, 2, 3, 4, 130, 141, 143}


@pytest.fixture
def config(workspace: Path) -> str:
    save(classifier(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 2, 4]}]\n")
    return "m.yaml"


def test_help_and_docs_name_the_codes_that_are_tested(trtkit: Run) -> None:
    rows = re.findall(r"^\| (\d+) \| ", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(code) for code in rows} == CODES
    told = trtkit("--help").out.partition("Exit codes: ")[2]
    assert {int(code) for code in re.findall(r"\b\d+\b", told)} == CODES


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, ["verify", "m.yaml", "--no-corners"]),
        (
            3,
            [
                "verify",
                "m.yaml",
                "--no-corners",
                "--set",
                "precision=fp16",
                "--set",
                "verify.max_relative_rms_error=1e-9",
            ],
        ),
        (1, ["verify", "missing.onnx"]),
        (1, ["inspect", "."]),
        (1, ["check", "localhost:9"]),
        (2, ["build"]),
        (2, ["build", "m.yaml", "--set", "precission=fp16"]),
        (2, ["plan", "m.yaml", "--gpu", "h3000"]),
        (2, ["plugins", "check", "--nothing"]),
        (2, ["nothing"]),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else str(value),
)
def test_codes(code: int, words: list[str], config: str, trtkit: Run) -> None:
    ran = trtkit(*words)
    assert (ran.code, "rror: " in ran.err) == (code, code in {1, 2})


def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*TRTKIT, "list"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_regression(workspace: Path, trtkit: Run) -> None:
    for name, latency_ms in (("before", 10.0), ("after", 12.0)):
        result = timed("ours", [latency_ms + index / 100 for index in range(50)])
        Path(f"{name}.json").write_text(report_text(vision_report(result)))
    assert trtkit("bench", "diff", "before.json", "after.json").code == 4
    assert trtkit("bench", "diff", "before.json", "before.json").code == 0


def test_the_script_of_the_docs_completes(workspace: Path) -> None:
    (block,) = re.findall(r"```bash\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ask = "complete -p trtkit"
    command = ["bash", "--norc", "-ec", block + ask]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == "complete -o nosort -F _trtkit_completion trtkit\n"
