"""Every command of docs/benchmarking.md runs, on small models."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny_chat
from tests.integration.test_bench_vision import build
from trtkit.engine.bundle import open_bundle
from trtkit.verify.verify import Request, verify_bundle

DOCS = Path(__file__).parents[2] / "docs/benchmarking.md"


@pytest.mark.slow
def test_every_command_of_the_docs_runs(tmp_path: Path, workspace: Path) -> None:
    bundles = workspace / "bundles"
    bundles.mkdir()
    for name, path in (("efficientnet-lite0", build(tmp_path)), ("llama", tiny_chat.build(tmp_path))):
        assert verify_bundle(open_bundle(path), Request(), lambda _: None)["passed"]
        (bundles / name).symlink_to(path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    blocks = re.findall(r"```bash\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        done = subprocess.run(["bash", "-ec", block], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, block + done.stderr
        assert "reference executor, CPU" in done.stdout
    assert {"before.json", "after.json", "figures.csv", "report.html", "results"} <= {
        p.name for p in workspace.iterdir()
    }
