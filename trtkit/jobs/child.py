"""Run a job in a child process: TensorRT may abort or segfault, hold memory, or have to be cancelled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit import errors
from trtkit.jobs.child_log import followed
from trtkit.jobs.trt_log import last_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json = dict[str, Any]

# How long a child may take to die on SIGTERM before it is killed.
_TERMINATE_TIMEOUT_S = 3.0


@dataclass
class ChildCrashError(Exception):
    """A job whose process died without an answer. log: all that it printed."""

    job: str
    returncode: int
    log: str

    @property
    def cause(self) -> str:
        """Return how the process died: a signal's name or an exit code."""
        if self.returncode < 0:
            return signal.Signals(-self.returncode).name
        return f"exit code {self.returncode}"


def run_job(job: str, arguments: Mapping[str, Any], on_event: Callable[[Json], None]) -> Json:
    """Run `job` of `trtkit.jobs.worker` in a child and return its result.

    Events arrive while it runs. Raises the child's own TrtkitError, or ChildCrashError where it died.
    An exception here, Ctrl-C among them, ends the child first.
    """
    with tempfile.TemporaryDirectory(prefix="trtkit-") as folder:
        log = Path(folder) / "log"
        answer, returncode = _converse(job, {**arguments, "log_path": str(log)}, on_event, log)
        if answer is None:
            raise ChildCrashError(job, returncode, log.read_text(errors="replace"))
    if answer["event"] == "error":
        raise _error_from(answer)
    result: Json = answer["result"]
    return result


def _converse(job: str, arguments: Json, on_event: Callable[[Json], None], log: Path) -> tuple[Json | None, int]:
    """Start the child, pass events on, and return its last word and exit code."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-P", "-m", "trtkit.jobs.worker", job, str(write_end)]  # -P: not from here
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            pass_fds=[write_end],
            start_new_session=True,
        )
    os.close(write_end)
    answer: Json | None = None
    try:
        with os.fdopen(read_end, encoding="utf-8") as events, followed(log, job):
            _send(process, arguments)
            for line in events:
                event = json.loads(line)
                if event["event"] in {"result", "error"}:
                    answer = event
                else:
                    on_event(event)
        return answer, process.wait()
    finally:
        _end(process)


def _send(process: subprocess.Popen[bytes], arguments: Json) -> None:
    """Write the arguments; stdin stays open, its end tells the child that we are gone."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        process.stdin.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child if it still runs."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_TERMINATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _error_from(answer: Json) -> errors.TrtkitError:
    """Rebuild the error that the child raised."""
    kind = getattr(errors, answer["error"], None)
    if kind is None:
        fix = f"report it with these lines:\n{last_lines(answer['log'])}"
        return errors.TrtkitError(f"internal error: {answer['what']}", answer["where"], fix)
    if issubclass(kind, errors.ProblemsError):
        problems = [errors.Problem(**problem) for problem in answer["problems"]]
        several: errors.ProblemsError = kind(answer["what"], problems, answer["fix"])
        return several
    error: errors.TrtkitError = kind(answer["what"], answer["where"], answer["fix"])
    return error
