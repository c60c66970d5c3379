"""Who does jobs: a child process each, or this process."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.files import scratch_folder
from trtkit.jobs.child import ChildCrashError, result_of, run_child
from trtkit.jobs.child_log import is_followed, log_lines
from trtkit.jobs.crash import explain_crash
from trtkit.jobs.events import ignore
from trtkit.jobs.inline import Printed, restored
from trtkit.jobs.job import Context
from trtkit.jobs.json_form import to_json
from trtkit.jobs.worker import answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import Job, Request, Result


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
                context = Context(printed.outside(self.report), log, _severity(job))
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
