"""Run a job that parses ONNX; if TensorRT refuses the model, find all of its faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.engine.jobs import DIAGNOSE, DiagnoseRequest
from trtkit.errors import TrtkitError, UnsupportedOperatorsError

if TYPE_CHECKING:
    from trtkit.jobs.job import Job, Request, Result
    from trtkit.jobs.runner import Runner


def run_parser(runner: Runner, job: Job[Request, Result], request: Request, model: DiagnoseRequest) -> Result:
    """Run a job that parses ONNX. Raises UnsupportedOperatorsError with every node that TensorRT refuses.

    model: what it parses.
    """
    try:
        return runner.run(job, request)
    except UnsupportedOperatorsError as first:
        try:
            runner.run(DIAGNOSE, model)
        except UnsupportedOperatorsError:
            raise
        except TrtkitError:
            raise first from None
        raise
