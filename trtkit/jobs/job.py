"""A job: a function that may run in a separate process, with the types of its request and result."""

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from trtkit.jobs.events import Listener, ignore

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Job(Generic[Request, Result]):
    """Work for a Runner. Declared in the package of its function, in a module that is cheap to import.

    function: `module:name` of `(request: Request, context: Context) -> Result`, imported only where the job runs.
    uses_tensorrt: whether TensorRT parses or builds in it: after a crash it runs again with TensorRT's verbose log.
    activity: what its process was doing, for crash messages.
    """

    function: str
    request: type[Request]
    result: type[Result]
    uses_tensorrt: bool = False
    activity: str = "the work"

    @property
    def name(self) -> str:
        return self.function.partition(":")[2]

    @property
    def request_name(self) -> str:
        """Return the request's type as `module:name`."""
        return f"{self.request.__module__}:{self.request.__qualname__}"


@dataclass(frozen=True)
class JobContext:
    """What a running job gets in addition to its request.

    report: receives its events.
    log: the file with everything that its process has printed so far, including TensorRT's log.
    severity: the lowest severity that TensorRT's logger writes; None leaves the choice to the job.
    """

    report: Listener = ignore
    log: Path = Path(os.devnull)
    severity: str | None = None


def load(name: str) -> Any:
    """Import the object named `module:name`."""
    module, _, inner = name.partition(":")
    return getattr(importlib.import_module(module), inner)
