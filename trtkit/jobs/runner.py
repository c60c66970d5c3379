"""Run the jobs of a build; a process that dies becomes an error that says where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import UnsupportedOperatorsError
from trtkit.jobs.child import ChildCrashError, run_job
from trtkit.jobs.child_log import is_followed
from trtkit.jobs.crash import explain_crash

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]
# Jobs in which TensorRT works, and that take how talkative it is.
_TENSORRT = {
    "describe",
    "compile",
    "trtkit.engine.decoder_compile:compile_decoder",
    "trtkit.engine.hybrid_compile:compile_stage",
}


def run(job: str, arguments: Json, on_event: Callable[[Json], None]) -> Json:
    """Do a job in a child process; a crash becomes an error that says where it was.

    Where a log is kept, TensorRT says what it does too, not only what is wrong.
    """
    talkative = {"severity": "INFO"} if job in _TENSORRT and is_followed() else {}
    try:
        return run_job(job, {**talkative, **arguments}, on_event)
    except ChildCrashError as crash:
        raise explain_crash(crash, arguments) from None


def run_parser(job: str, arguments: Json, on_event: Callable[[Json], None], onnx: str = "") -> Json:
    """Run a job that parses ONNX; a refused model is asked for all of its faults.

    onnx: the model's path, where `arguments` do not have it.
    """
    try:
        return run(job, arguments, on_event)
    except UnsupportedOperatorsError as first:
        try:
            run_job("diagnose", {**arguments, "onnx": onnx or arguments["onnx"]}, on_event)
        except ChildCrashError:
            raise first from None
        raise
