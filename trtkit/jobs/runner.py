"""Runners of jobs: in a child process each, with crashes explained, or in this process."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import BuildError, SourceError, TrtkitError
from trtkit.files import scratch_folder
from trtkit.jobs.child import ChildCrashError, ChildGroup, is_followed, log_lines, result_of, run_child
from trtkit.jobs.events import Event, Listener, Phase, Progress, Step, ignore
from trtkit.jobs.job import Job, JobContext, Request, Result
from trtkit.jobs.json_form import to_json
from trtkit.jobs.trt_log import error_lines, last_lines, last_parsed_node
from trtkit.jobs.worker import answer


@dataclass(frozen=True)
class Runner(ABC):
    """Runs jobs and passes their events to `report`. It is passed as a value; callers may report events too."""

    report: Listener = ignore

    @abstractmethod
    def run(self, job: Job[Request, Result], request: Request) -> Result:
        """Run a job and return its result. Raises the job's TrtkitError."""

    def run_all(
        self,
        job: Job[Request, Result],
        requests: Sequence[Request],
        at_once: int,  # noqa: ARG002
        name: str,  # noqa: ARG002
    ) -> list[Result]:
        """Run a job for each request, `at_once` at a time if jobs are processes; return the results in order.

        The first error ends the other jobs. Jobs that run at once report their steps, and the number of ended ones is
        reported as the progress of `name`.
        """
        return [self.run(job, request) for request in requests]


@dataclass(frozen=True)
class ChildRunner(Runner):
    """Runs each job in a child process; a crash becomes an error that says where it happened."""

    def run(self, job: Job[Request, Result], request: Request) -> Result:
        """Run a job. If a log is kept, it includes TensorRT's information messages, not only warnings and errors."""
        try:
            return run_child(job, request, self.report, _severity(job))
        except ChildCrashError as crash:
            raise explain_crash(crash, job, request) from None

    def run_all(self, job: Job[Request, Result], requests: Sequence[Request], at_once: int, name: str) -> list[Result]:
        """Run jobs side by side; see Runner."""
        if min(at_once, len(requests)) == 1:
            return super().run_all(job, requests, at_once, name)
        group, lock = ChildGroup(), threading.Lock()

        def report(event: Event) -> None:
            with lock:
                self.report(event)

        def run(request: Request) -> Result:
            return run_child(job, request, report_step, _severity(job), group)

        def report_step(event: Event) -> None:
            if isinstance(event, Step):  # the phases of several jobs would be confusing
                report(event)

        with ThreadPoolExecutor(at_once) as pool:
            report(Progress(name, 0, len(requests)))
            futures = {pool.submit(run, request): request for request in requests}
            try:
                for done, future in enumerate(as_completed(futures), 1):
                    future.result()
                    report(Progress(name, done, len(requests)))
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                group.end()
                if isinstance(error, ChildCrashError):
                    raise explain_crash(error, job, futures[future]) from None
                raise
        return [future.result() for future in futures]


@dataclass(frozen=True)
class InlineRunner(Runner):
    """Runs jobs in this process, with requests and results passed through JSON as for a child; for tests.

    A crash kills the caller, and peak memory is that of the whole process.
    """

    def run(self, job: Job[Request, Result], request: Request) -> Result:
        """Run a job; its output goes to its log, and its changes to the process are undone."""
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
    """Return the current kind of runner: child processes, unless in an `inline_jobs` block."""
    return _KIND.get()(report)


@contextmanager
def inline_jobs() -> Iterator[None]:
    """Make `new_runner` return runners that run jobs in this process while the block runs; for tests."""
    token = _KIND.set(InlineRunner)
    try:
        yield
    finally:
        _KIND.reset(token)


def _severity(job: Job[Request, Result]) -> str | None:
    return "INFO" if job.uses_tensorrt and is_followed() else None


_OUT_OF_MEMORY = "SIGKILL"


def explain_crash(crash: ChildCrashError, job: Job[Request, Result], request: Request) -> TrtkitError:
    """Return an error for a dead child that names the phase it was in and the last node, if known.

    If TensorRT was at work, the same job runs once more with TensorRT's most verbose log.
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
    """Run the job again with a verbose log; return the last phase that it reached, and its log."""
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
    """Redirects this process's output to a file while a job runs.

    Python's streams, and the descriptors that C++ uses.
    """

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
        """Return `report` called with the original streams, since listeners may print."""

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
    """Undo a job's changes to its process: sys.path, user modules and torch's random state."""
    path, modules = list(sys.path), set(sys.modules)
    importlib.invalidate_caches()  # a job may import a file that was just written
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
