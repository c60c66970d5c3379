"""Engines of several ranks on the simulated runtime: processes that a launcher starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integration.parallel.simulated_rank import PROMPTS, STEPS, served
from tests.support.engine_decoders import greedy
from trtkit.bundle.bundle import open_bundle
from trtkit.llm.execution import open_execution

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def launch(count: int, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as `count` ranks."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [*TORCHRUN, "--nproc-per-node", str(count), *words]
    return subprocess.run(
        command, check=False, env=os.environ | own, cwd=ROOT, text=True, capture_output=True, timeout=300
    )


@pytest.mark.parametrize("grid", ["tensor", "pipeline", "pipeline, paged", "sequence", "context", "context, paged"])
def test_engines_of_ranks_generate_what_one_rank_does(
    bundle_of: Callable[[str], Path], tmp_path: Path, grid: str
) -> None:
    script = "tests/integration/parallel/simulated_rank.py"
    done = launch(
        4 if "context, paged" in grid else 2,
        script,
        str(bundle_of(grid)),
        f"{tmp_path}/answer.npz",
        TRTKIT_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr[:4000]
    answer = np.load(tmp_path / "answer.npz")
    one = open_execution(open_bundle(bundle_of("one")), "reference")
    tokens, logits = greedy(one, PROMPTS, STEPS)
    assert np.array_equal(answer["tokens"], tokens)
    assert np.abs(answer["logits"] - np.array(logits)).max() < 1e-4
    assert np.array_equal(answer["served"], served(one))
    assert answer["connected"] == (0 if "pipeline" in grid else 2)  # both contexts, in every rank


def test_a_rank_whose_peers_do_not_connect_is_ended(bundle_of: Callable[[str], Path], tmp_path: Path) -> None:
    """It waits with the interpreter's lock held, so that no thread of its own can notice."""
    script, cache = "tests/integration/parallel/simulated_rank.py", str(tmp_path / "cache")
    begun = time.monotonic()
    done = launch(2, script, str(bundle_of("tensor")), f"{tmp_path}/none", TRTKIT_CACHE_DIR=cache, STAY_AWAY="2")
    assert done.returncode != 0
    assert "error: ranks: the others have not connected within 2 seconds" in done.stderr
    assert time.monotonic() - begun < 60
