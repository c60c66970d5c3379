"""Every command of docs/benchmarking.md and docs/benchmarking-llm.md runs, on small models."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.test_bench_vision import build
from tests.support import tiny_chat
from tests.support.docs import DOCS, blocks
from trtkit.bundle.bundle import open_bundle
from trtkit.jobs.runner import new_runner
from trtkit.verification.verify import VerifySettings, verify_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.mark.slow
def test_every_command_of_the_docs_runs(tmp_path: Path, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    bundles = workspace / "bundles"
    bundles.mkdir()
    for name, path in (("efficientnet-lite0", build(tmp_path)), ("llama", tiny_chat.build(tmp_path))):
        assert verify_bundle(open_bundle(path), VerifySettings(), new_runner()).passed
        (bundles / name).symlink_to(path)
    scripts = [
        block.text for page in ("benchmarking.md", "benchmarking-llm.md") for block in blocks(DOCS / page, "bash")
    ]
    assert len(scripts) == 2
    for line in "".join(scripts).splitlines():
        if not line.startswith("trtkit "):
            subprocess.run(["bash", "-ec", line], check=True)
            continue
        ran = trtkit(*shlex.split(line)[1:])  # in this process: each of its own would import torch
        assert ran.code == 0, line + ran.err
        assert " diff " in line or "reference executor, CPU" in ran.out
    assert {"before.json", "after.json", "figures.csv", "report.html", "results"} <= {
        p.name for p in workspace.iterdir()
    }
