"""Threads that wait give up their core soon, unless the user says otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from trtkit.threads import ends_after

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


WAITING = """
import ctypes
from trtkit.threads import ends_after
with ends_after(0.1, "it took too long"):
    print("begun", flush=True)
with ends_after(0.5, "the others have not connected"):
    ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock held
"""


def test_a_process_that_waits_with_the_interpreters_lock_is_ended() -> None:
    ran = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, check=False, timeout=30)
    assert ran.returncode == -signal.SIGKILL
    assert ran.stdout == "begun\n"
    assert ran.stderr == "error: the others have not connected\n"


def test_a_process_that_is_done_is_left_alone() -> None:
    with ends_after(0.2, "never said"):
        pass
    time.sleep(0.5)
