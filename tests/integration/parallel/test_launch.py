"""Ranks that torchrun starts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.integration.parallel.test_engines import launch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROMPT = ("the quick brown", "--no-chat", "--runtime", "reference", "--max-tokens", "8")


def test_torchrun_prints_what_one_process_prints(bundle_of: Callable[[str], Path]) -> None:
    one = [sys.executable, "-m", "trtkit", "generate", str(bundle_of("one")), *PROMPT]
    expected = subprocess.run(one, check=True, capture_output=True, text=True).stdout
    done = launch(2, "-m", "trtkit", "generate", str(bundle_of("tensor")), *PROMPT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == expected
    assert len(expected) > 8


def test_another_number_of_ranks_is_refused(bundle_of: Callable[[str], Path]) -> None:
    done = launch(3, "-m", "trtkit", "generate", str(bundle_of("tensor")), *PROMPT)
    assert done.returncode != 0
    refusal = (
        "error: WORLD_SIZE: 3 ranks were launched; the bundle has 2\n"
        "fix: launch 2 ranks, or start the command without a launcher\n"
    )
    assert refusal in done.stderr
    assert not done.stdout
