"""Threads that wait give up their core soon, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# After trtkit's API is loaded, libgomp itself tells what it read.
SCRIPT = "import trtkit; trtkit.SamplingParams; import torch"
CLEAN = {key: value for key, value in os.environ.items() if key not in {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}}


@pytest.mark.parametrize(
    ("setting", "count"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000")],
)
def test_the_library_of_threads_reads_the_policy(setting: dict[str, str], count: str) -> None:
    words = [sys.executable, "-c", SCRIPT]
    env = {**CLEAN, **setting, "OMP_DISPLAY_ENV": "VERBOSE"}
    ran = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{count}'" in ran.stderr
