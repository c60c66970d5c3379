"""Run a job in a child process: TensorRT may abort or segfault, hold memory, or have to be cancelled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.files import scratch_folder
from trtkit.jobs.child_log import followed
from trtkit.jobs.events import event_from_json
from trtkit.jobs.faults import error_from_json
from trtkit.jobs.job import JobContext
from trtkit.jobs.json_form import from_json, to_json

if TYPE_CHECKING:
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import Job, Request, Result

# How long a child may take to die on SIGTERM before it is killed.
_TERMINATE_TIMEOUT_S = 3.0


@dataclass
class ChildCrashError(Exception):
    """A job whose process died without an answer. log: all that it printed."""

    returncode: int
    log: str

    @property
    def cause(self) -> str:
        """How the process died: a signal's name or an exit code."""
        if self.returncode < 0:
            return signal.Signals(-self.returncode).name
        return f"exit code {self.returncode}"


def run_child(job: Job[Request, Result], request: Request, report: Listener, severity: str | None = None) -> Result:
    """Do `job` in a child process and return its result.

    Events arrive while it runs. Raises the child's own TrtkitError, or ChildCrashError if it died.
    An exception here, Ctrl-C among them, ends the child first.
    """
    with scratch_folder() as folder:
        log = folder / "log"
        data = json.dumps(to_json(request))
        answer, returncode = _converse(job, data, JobContext(report, log, severity))
        if answer is None:
            raise ChildCrashError(returncode, log.read_text(errors="replace"))
    return result_of(job, answer)


def result_of(job: Job[Request, Result], answer: dict[str, Any]) -> Result:
    """Return the result that the worker answered with. Raises the error that it answered with."""
    if answer["event"] == "error":
        raise error_from_json(answer)
    return from_json(job.result, answer["result"])


def _converse(job: Job[Request, Result], request: str, context: JobContext) -> tuple[dict[str, Any] | None, int]:
    """Start the child, pass its events on, and return its last word and exit code."""
    read_end, write_end = os.pipe()
    names = (job.function, job.request_name, str(write_end))
    command = [sys.executable, "-P", "-m", "trtkit.jobs.worker", *names, str(context.log)]
    with context.log.open("wb") as log_file:
        process = subprocess.Popen(
            [*command, *([context.severity] if context.severity else [])],
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            pass_fds=[write_end],
            start_new_session=True,
        )
    os.close(write_end)
    answer: dict[str, Any] | None = None
    try:
        with os.fdopen(read_end, encoding="utf-8") as events, followed(context.log, job.name):
            _send(process, request)
            for line in events:
                event = json.loads(line)
                if event["event"] in {"result", "error"}:
                    answer = event
                else:
                    context.report(event_from_json(event, job.result))
        return answer, process.wait()
    finally:
        _end(process)


def _send(process: subprocess.Popen[bytes], request: str) -> None:
    """Write the request; stdin stays open, its end tells the child that we are gone."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(request.encode() + b"\n")
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
