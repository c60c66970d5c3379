"""Runs steps one after another, each in its own process, which may hang or die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.answers import Record, ended, path_of, read, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.gpu.step import Step

ROOT = Path(__file__).parents[2]
CHILD = (sys.executable, "-m", "tests.gpu.child")


@dataclass(frozen=True)
class Call:
    """A run of the kit. folder: where to write files. place: the GPU's name, or `simulated`.

    again: steps to repeat although they have finished. child: the command that runs a step.
    """

    folder: Path
    scratch: Path
    place: str
    minutes: float
    again: frozenset[str] = frozenset()
    child: Sequence[str] = CHILD


def run_steps(steps: Iterable[Step], call: Call) -> Iterator[tuple[Step, Record | None]]:
    """Yield each step's record as soon as it ends; None if the step does not fit into the remaining time."""
    end = time.monotonic() + call.minutes * 60
    for step in steps:
        if not is_due(step, call):
            continue
        left = end - time.monotonic()
        yield step, None if step.estimate_s > left else _run(step, call, left)


def is_due(step: Step, call: Call) -> bool:
    """Whether a step has not finished at this place, or is to be repeated."""
    path = path_of(call.folder, step.name)
    if step.name in call.again or not path.exists():
        return True
    record = read(path)
    return not record.is_finished or record.place != call.place


def _run(step: Step, call: Call, left_s: float) -> Record:
    path_of(call.folder, step.name).unlink(missing_ok=True)
    words = [*call.child, step.name, str(call.folder), str(call.scratch)]
    words += ["--simulated"] if call.place == "simulated" else []
    environment = os.environ | {"TRTKIT_CACHE_DIR": str(call.scratch / "cache"), "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
    limit_s = min(step.limit_s, left_s)
    try:
        code = child.wait(limit_s)
    except BaseException as stop:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if not isinstance(stop, subprocess.TimeoutExpired):
            raise
        state = "timed out" if limit_s == step.limit_s else "cut off"
        return _close(step, call, state, f"it was ended after {limit_s:.0f} s")
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return _close(step, call, "died", f"its process ended with {how}")


def _close(step: Step, call: Call, state: str, error: str) -> Record:
    """Return the record that a child wrote. If it still says `running`, the child did not finish: record why."""
    path = path_of(call.folder, step.name)
    if not path.exists():
        write(call.folder, Record(step.name, step.question, call.place, " ".join(call.child), {}, ""))
    record = read(path)
    if record.state == "running":
        last = record.answers[-1]["what"] if record.answers else "its start"
        record = replace(ended(record, state, f"{error}, after {last}"))
        write(call.folder, record)
    return record
