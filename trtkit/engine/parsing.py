"""Run a job that parses ONNX; if TensorRT refuses the model, find all of its faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.engine.jobs import DIAGNOSE
from trtkit.errors import TrtkitError, UnsupportedOperatorsError

if TYPE_CHECKING:
    from trtkit.jobs.job import Job, Result
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


def run_parser(runner: Runner, job: Job[Json, Result], arguments: Json, onnx: str = "") -> Result:
    """Run a job that parses ONNX. Raises UnsupportedOperatorsError with every node that TensorRT refuses.

    onnx: the model's path, if `arguments` do not have it.
    """
    try:
        return runner.run(job, arguments)
    except UnsupportedOperatorsError as first:
        try:
            runner.run(DIAGNOSE, {"backend": arguments["backend"], "onnx": onnx or arguments["onnx"]})
        except UnsupportedOperatorsError:
            raise
        except TrtkitError:
            raise first from None
        raise
