"""The subject of a verification with arrays as inputs.

Its stages on the reference executor, and a matching reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.builder.hybrids import open_hybrid
from trtkit.dtypes import dtype_of
from trtkit.inputs.samples import with_index_ranges
from trtkit.jobs.events import Phase
from trtkit.network.onnx.facts import widest_rounding
from trtkit.network.onnx.io import graph_inputs
from trtkit.quantization.vision.onnx_model import recorded_loss
from trtkit.resolve import resolve
from trtkit.runtime.stages import reference_stages
from trtkit.sources import onnx_file, package_file
from trtkit.verification.hybrid_reference import HybridReference
from trtkit.verification.quantized import (
    hybrid_tolerance,
    quantized_source,
    quantized_tolerance,
    stored_reference,
)
from trtkit.verification.references import NetworkOrigin, choose_reference, unusable
from trtkit.verification.suppression import RowsExecution, before_nms

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.builder.hybrids import OpenedHybrid
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.events import Listener
    from trtkit.network.onnx.io import OnnxTensorSpec
    from trtkit.runtime.stages import StagesExecution
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.quantized import QuantizedSource, StoredReference
    from trtkit.verification.references import Reference

# End to end, the errors of many layers add up: ten times the tolerance of a single op.
_END_TO_END = 10


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and its reference.

    config: defines how `execution`'s outputs are read. onnx: the single file that is the whole model; None if there are
    several parts. opened: the source of such a model. tolerance: relative RMS error that its outputs may have. stored:
    the quantized source file itself, if `reference` is the float model that it was made from. recorded_loss: the loss
    from quantization on the calibration data, as recorded in the network's file. source_precision: the type that widens
    the tolerance because the source itself rounds to it; empty if none does.
    """

    config: ModelConfig
    inputs: Sequence[OnnxTensorSpec]
    execution: StagesExecution
    reference: Reference
    tolerance: float
    onnx: Path | None = None
    opened: OpenedHybrid | None = None
    stored: StoredReference | None = None
    recorded_loss: float | None = None
    source_precision: str = ""


def tolerance_of(config: ModelConfig, source_precision: str = "") -> float:
    """Return the end-to-end relative RMS error that outputs may have. source_precision: see `Subject`."""
    precision = source_precision or config.precision
    return config.verify.max_relative_rms_error or _END_TO_END * dtype_of(precision).tolerance


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
    """Open a model that is a single ONNX file."""
    onnx = request.stages[0].onnx
    assert onnx is not None
    report(Phase("parse"))
    graph = onnx_file.read_graph(onnx.path)
    config = with_index_ranges(request.config, graph)
    quantized = quantized_source(config, graph, trusts_source=request.request.trust_source)
    config = config if quantized is None else quantized.config
    execution = reference_stages(backend, request.stages, None)
    if config.engine_nms is not None:
        execution, config = before_nms(execution, graph, config.engine_nms), config.with_host_nms()
    report(Phase("load reference"))
    origin = NetworkOrigin(
        onnx.path,
        list(execution.output_names),
        request.digests,
        request.trusts_source,
        isinstance(execution, RowsExecution),
    )
    precision = _source_precision(config, origin)
    reference, stored = _references(request, config, quantized, origin)
    return Subject(
        config,
        graph_inputs(graph),
        execution,
        reference,
        max(tolerance_of(config, precision), quantized_tolerance(config)),
        onnx.path,
        stored=stored,
        recorded_loss=None if config.quantize is None else recorded_loss(graph),
        source_precision=precision,
    )


def _references(
    request: VerifyRequest, config: ModelConfig, quantized: QuantizedSource | None, origin: NetworkOrigin
) -> tuple[Reference, StoredReference | None]:
    """Return the reference, and the quantized file itself if the reference is the float model it was made from."""
    against = request.request.against
    if quantized is None or quantized.float_config is None:
        reference = choose_reference(config, against, origin)
        reference.description += "" if quantized is None else quantized.float_problem
        return reference, None
    stored = stored_reference(request.config, config, tolerance_of(config), origin)
    return choose_reference(quantized.float_config, against, replace(origin, digests=quantized.digests)), stored


def _source_precision(config: ModelConfig, origin: NetworkOrigin) -> str:
    """Return the type that an ONNX source itself rounds to, if it is coarser than the config's; empty otherwise."""
    if config.source.onnx is None or unusable(config.source, origin)[0]:
        return ""
    rounding = widest_rounding(onnx_file.read_graph(package_file.resolve(config.source.onnx, config.source.requires)))
    is_coarser = rounding and dtype_of(rounding).tolerance > dtype_of(config.precision).tolerance
    return rounding if is_coarser and config.verify.max_relative_rms_error is None else ""
