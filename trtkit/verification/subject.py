"""What is verified of a model of arrays: its stages on the reference executor, and the reference that fits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import dtype_of
from trtkit.engine.hybrids import open_hybrid
from trtkit.inputs.index_ranges import with_index_ranges
from trtkit.jobs.events import Phase
from trtkit.network.onnx.io import graph_inputs
from trtkit.resolve import resolve
from trtkit.runtime.stages import reference_stages
from trtkit.sources import onnx_file
from trtkit.verification.hybrid_reference import HybridReference
from trtkit.verification.quantized import hybrid_tolerance, quantized_tolerance
from trtkit.verification.references import Origin, choose_reference
from trtkit.verification.suppression import RowsExecution, before_nms

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.config.schema import ModelConfig
    from trtkit.engine.hybrids import OpenedHybrid
    from trtkit.jobs.events import Listener
    from trtkit.network.onnx.io import TensorSpec
    from trtkit.runtime.stages import StagesExecution
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.references import Reference

# End to end, errors of many layers add up: ten times what one op may have.
_END_TO_END = 10


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and its reference.

    config: as `execution`'s outputs are read. onnx: the one file that is the whole model; None if there are several
        parts. opened: the source of such a model. tolerance: relative RMS error that its outputs may have.
    """

    config: ModelConfig
    inputs: Sequence[TensorSpec]
    execution: StagesExecution
    reference: Reference
    tolerance: float
    onnx: Path | None = None
    opened: OpenedHybrid | None = None


def tolerance_of(config: ModelConfig) -> float:
    """Return the relative RMS error that outputs may have, end to end."""
    return config.verify.max_relative_rms_error or _END_TO_END * dtype_of(config.precision).tolerance


def open_subject(request: VerifyRequest, backend: Backend, report: Listener) -> Subject:
    """Write the model's networks and open its reference."""
    if all(stage.writer == "parser" for stage in request.stages):
        return _one_file(request, backend, report)
    report(Phase("write network"))
    opened, config = open_hybrid(resolve(request.config)), request.config
    execution = reference_stages(backend, request.stages, opened, report)
    report(Phase("load reference"))
    tolerance = max(tolerance_of(config), hybrid_tolerance(config, opened.quantization))
    return Subject(config, opened.inputs, execution, HybridReference(opened), tolerance, opened=opened)


def _one_file(request: VerifyRequest, backend: Backend, report: Listener) -> Subject:
    """Open a model that is one ONNX file."""
    onnx = request.stages[0].onnx
    assert onnx is not None
    report(Phase("parse"))
    graph = onnx_file.read_graph(onnx.path)
    config = with_index_ranges(request.config, graph)
    execution = reference_stages(backend, request.stages, None)
    if config.engine_nms is not None:
        execution, config = before_nms(execution, graph, config.engine_nms), config.with_host_nms()
    report(Phase("load reference"))
    origin = Origin(
        onnx.path,
        list(execution.output_names),
        request.digests,
        request.request.trust_source,
        isinstance(execution, RowsExecution),
    )
    reference = choose_reference(config, request.request.against, origin)
    tolerance = max(tolerance_of(config), quantized_tolerance(config))
    return Subject(config, graph_inputs(graph), execution, reference, tolerance, onnx.path)
