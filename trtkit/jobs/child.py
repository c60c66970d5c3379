"""Run a job in a child process, since TensorRT may abort, segfault, hold memory or need to be cancelled."""

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.files import scratch_folder
from trtkit.jobs.events import Listener, event_from_json
from trtkit.jobs.faults import error_from_json
from trtkit.jobs.job import Job, JobContext, Request, Result
from trtkit.jobs.json_form import from_json, to_json
from trtkit.jobs.process import ChildProcess
from trtkit.jobs.trt_log import level_of

# How long a child may take to exit on SIGTERM before it is killed.
_TERMINATE_TIMEOUT_S = 3.0


@dataclass
class ChildCrashError(Exception):
    """A job whose process died without an answer. log: everything that it printed."""

    returncode: int
    log: str

    @property
    def cause(self) -> str:
        """The cause of death: a signal's name or an exit code."""
        if self.returncode < 0:
            return signal.Signals(-self.returncode).name
        return f"exit code {self.returncode}"


class ChildGroup:
    """Child processes that run at once, and end together if one fails."""

    def __init__(self) -> None:
        self._children: list[ChildProcess] = []
        self._lock = threading.Lock()
        self._is_over = False

    def add(self, child: ChildProcess) -> None:
        """Add a child that has just started; it is ended if the others have been."""
        with self._lock:
            self._children.append(child)
            if self._is_over:
                child.kill()

    def end(self) -> None:
        """End all children, including those that start later."""
        with self._lock:
            self._is_over = True
            for child in self._children:
                child.end(_TERMINATE_TIMEOUT_S)


def run_child(
    job: Job[Request, Result],
    request: Request,
    report: Listener,
    severity: str | None = None,
    group: ChildGroup | None = None,
) -> Result:
    """Run `job` in a child process and return its result.

    Events are delivered while it runs. Raises the child's own TrtkitError, or ChildCrashError if it died. An exception
    here, including Ctrl-C, first ends the child; so does the end of its `group`, from another thread.
    """
    with scratch_folder() as folder:
        log = folder / "log"
        data = json.dumps(to_json(request))
        answer, returncode = _converse(job, data, JobContext(report, log, severity), group or ChildGroup())
        if answer is None:
            raise ChildCrashError(returncode, log.read_text(errors="replace"))
    return result_of(job, answer)


def result_of(job: Job[Request, Result], answer: dict[str, Any]) -> Result:
    """Return the result in the worker's answer, or raise the error in it."""
    if answer["event"] == "error":
        raise error_from_json(answer)
    return from_json(job.result, answer["result"])


def _converse(
    job: Job[Request, Result], request: str, context: JobContext, group: ChildGroup
) -> tuple[dict[str, Any] | None, int]:
    """Start the child and pass on its events; return its answer and exit code."""
    read_end, write_end = os.pipe()
    command = ["trtkit.jobs.worker", job.function, job.request_name, str(write_end), str(context.log)]
    command += [context.severity] if context.severity else []
    process = ChildProcess(command, context.log, pass_fds=[write_end])
    os.close(write_end)
    group.add(process)
    answer: dict[str, Any] | None = None
    try:
        with os.fdopen(read_end, encoding="utf-8") as events, followed(context.log, job.name):
            process.send(request)
            for line in events:
                event = json.loads(line)
                if event["event"] in {"result", "error"}:
                    answer = event
                else:
                    context.report(event_from_json(event, job.result))
        return answer, process.wait()
    finally:
        process.end(_TERMINATE_TIMEOUT_S)


_LOG = logging.getLogger("trtkit.child")
# How often a child's log file is polled.
_INTERVAL_S = 0.2


def is_followed() -> bool:
    """Whether anyone keeps the log: if so, children log more than their errors need."""
    return _LOG.isEnabledFor(logging.INFO)


@contextlib.contextmanager
def followed(file: Path, job: str) -> Iterator[None]:
    """Log each line appended to `file` while the block runs, with TensorRT's severity."""
    if not is_followed():
        yield
        return
    _LOG.debug("process of job %s", job)
    is_over = threading.Event()
    thread = threading.Thread(target=_follow, args=(file, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def log_lines(file: Path, job: str) -> None:
    """Log all lines of `file`, a job's output, as `followed` does while a child runs."""
    if is_followed():
        _LOG.debug("process of job %s", job)
        is_over = threading.Event()
        is_over.set()
        _follow(file, is_over)


def _follow(file: Path, is_over: threading.Event) -> None:
    """Log lines until `is_over` is set, then the remaining ones."""
    rest = b""
    with file.open("rb") as stream:
        while True:
            was_over = is_over.wait(_INTERVAL_S)
            *lines, rest = (rest + stream.read()).split(b"\n")
            for line in (*lines, rest) if was_over else lines:
                text = line.decode(errors="replace").rstrip()
                if text:
                    _LOG.log(level_of(text), "%s", text)
            if was_over:
                return
