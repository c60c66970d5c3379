"""Who runs jobs: a child process each, whose crashes are explained, or this process."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import BuildError, SourceError, TrtkitError
from trtkit.files import scratch_folder
from trtkit.jobs.child import ChildCrashError, is_followed, log_lines, result_of, run_child
from trtkit.jobs.events import Event, Listener, Phase, ignore
from trtkit.jobs.job import Job, JobContext, Request, Result
from trtkit.jobs.json_form import to_json
from trtkit.jobs.trt_log import error_lines, last_lines, last_parsed_node
from trtkit.jobs.worker import answer


@dataclass(frozen=True)
class Runner(ABC):
    """Does jobs and tells `report` what happens in them. Passed as a value; those who pass it may report too."""

    report: Listener = ignore

    @abstractmethod
    def run(self, job: Job[Request, Result], request: Request) -> Result:
        """Do a job and return its result. Raises the TrtkitError that it raised."""


@dataclass(frozen=True)
class ChildRunner(Runner):
    """Does each job in a process of its own; one that dies becomes an error that says where it was."""

    def run(self, job: Job[Request, Result], request: Request) -> Result:
        """Do a job. Where a log is kept, TensorRT says what it does too, not only what is wrong."""
        try:
            return run_child(job, request, self.report, _severity(job))
        except ChildCrashError as crash:
            raise explain_crash(crash, job, request) from None


@dataclass(frozen=True)
class InlineRunner(Runner):
    """Does jobs in this process, with requests and results through JSON as from a child; for tests.

    A crash is the caller's own, and peak memory is that of the whole process.
    """

    def run(self, job: Job[Request, Result], request: Request) -> Result:
        """Do a job; what it prints goes to its log, what it changes in the process is put back."""
        data = json.loads(json.dumps(to_json(request)))
        with scratch_folder() as folder:
            log = folder / "log"
            with Printed(log) as printed, restored():
                context = JobContext(printed.outside(self.report), log, _severity(job))
                reply = answer(job.function, job.request_name, data, context)
            log_lines(log, job.name)
        return result_of(job, json.loads(json.dumps(reply)))


_KIND: ContextVar[type[Runner]] = ContextVar("kind of runner", default=ChildRunner)


def new_runner(report: Listener = ignore) -> Runner:
    """Return a runner of the kind in use: children, unless `inline_jobs` says otherwise."""
    return _KIND.get()(report)


@contextmanager
def inline_jobs() -> Iterator[None]:
    """Do jobs in this process while the block runs, for whoever takes the runner of `new_runner`; for tests."""
    token = _KIND.set(InlineRunner)
    try:
        yield
    finally:
        _KIND.reset(token)


def _severity(job: Job[Request, Result]) -> str | None:
    return "INFO" if job.uses_tensorrt and is_followed() else None


_OUT_OF_MEMORY = "SIGKILL"


def explain_crash(crash: ChildCrashError, job: Job[Request, Result], request: Request) -> TrtkitError:
    """Turn a dead child into an error that names the phase it was in and the last node, if they are known.

    If TensorRT was at work, the same job runs once more with its most talkative log.
    """
    if crash.cause == _OUT_OF_MEMORY:
        return BuildError(
            f"the process of job `{job.name}` was killed, as the system does when memory runs out",
            fix="free memory, or build on a machine with more",
        )
    if not job.uses_tensorrt:
        return SourceError(f"{job.activity} died with {crash.cause}: {last_lines(crash.log, 3)}", f"job {job.name}")
    phase, log = _rerun_verbosely(crash, job, request)
    node, errors = last_parsed_node(log), error_lines(log)
    if phase == "parse":
        moment = f"while parsing {node}"
    else:
        moment = "while building" if phase == "build" else f"in the phase `{phase}`"
        moment += f", the last node parsed was {node}" if node else ""
    last = f"; TensorRT's last error: {errors[-1]}" if errors else ""
    if log.strip() and not errors:
        last = f"; last log line: {last_lines(log, 1)}"
    return BuildError(
        f"TensorRT died with {crash.cause} {moment}{last}",
        fix="replace that part of the model; `trtkit inspect` on parts of it narrows it down",
    )


def _rerun_verbosely(crash: ChildCrashError, job: Job[Request, Result], request: Request) -> tuple[str, str]:
    """Do the job again with a verbose log; return the last phase that it began, and its log."""
    phases = ["start"]

    def note(event: Event) -> None:
        if isinstance(event, Phase):
            phases.append(event.name)

    try:
        run_child(job, request, note, "VERBOSE")
    except ChildCrashError as again:
        return phases[-1], again.log
    except TrtkitError:
        pass
    return phases[-1], crash.log


class Printed:
    """Sends what this process prints to a file while a job runs: Python's streams, and C++'s below them."""

    def __init__(self, log: Path) -> None:
        self._file = log.open("a", encoding="utf-8", buffering=1)
        self._streams, self._saved = (sys.stdout, sys.stderr), (os.dup(1), os.dup(2))

    def __enter__(self) -> Printed:
        self._to_log()
        return self

    def __exit__(self, *_: object) -> None:
        self._back()
        for descriptor in self._saved:
            os.close(descriptor)
        self._file.close()

    def outside(self, report: Listener) -> Listener:
        """Return `report` with the streams as they were before: who listens may print."""

        def deliver(event: Event) -> None:
            self._back()
            try:
                report(event)
            finally:
                self._to_log()

        return deliver

    def _to_log(self) -> None:
        _flush()
        sys.stdout = sys.stderr = self._file
        for descriptor in (1, 2):
            os.dup2(self._file.fileno(), descriptor)

    def _back(self) -> None:
        _flush()
        sys.stdout, sys.stderr = self._streams
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Put back what a job changes in its process: sys.path, a user's modules, torch's random state."""
    path, modules = list(sys.path), set(sys.modules)
    importlib.invalidate_caches()  # a job may import a file that was written just now
    try:
        with contextlib.ExitStack() as stack:
            if "torch" in sys.modules:
                stack.enter_context(sys.modules["torch"].random.fork_rng(devices=[]))
            yield
    finally:
        added = tuple(f"{folder}{os.sep}" for folder in sys.path if folder not in path)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(added or ("\0",)):
                del sys.modules[name]


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
