"""Write a stage; if TensorRT refuses its ONNX parts, find all of its faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.builder.jobs import BUILD_STAGE, DIAGNOSE, DiagnoseRequest
from trtkit.errors import TrtkitError, UnsupportedOperatorsError

if TYPE_CHECKING:
    from trtkit.builder.stages import StageRequest, StageResult
    from trtkit.jobs.runner import Runner


def run_stage(runner: Runner, request: StageRequest) -> StageResult:
    """Write a stage, and build it if it asks so. Raises UnsupportedOperatorsError with every node that is refused."""
    try:
        return runner.run(BUILD_STAGE, request)
    except UnsupportedOperatorsError as first:
        onnx = request.stage.onnx
        assert onnx is not None
        try:
            runner.run(DIAGNOSE, DiagnoseRequest(request.backend, onnx.path))
        except UnsupportedOperatorsError:
            raise
        except TrtkitError:
            raise first from None
        raise
