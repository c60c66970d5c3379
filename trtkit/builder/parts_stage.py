"""Write the network of a hybrid's stage: ONNX parts are parsed, the others use the network API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.builder.hybrids import open_hybrid
from trtkit.builder.plugins import register_plugins
from trtkit.builder.reported import Reported, stored_names
from trtkit.builder.stages import WrittenNetwork
from trtkit.config.schema import ModelConfig
from trtkit.dtypes import dtype_of
from trtkit.jobs.events import Phase
from trtkit.jobs.job import JobContext
from trtkit.models.hybrids.weights import find_part_weights
from trtkit.network.hybrid import Material, StageNetwork, write_stage
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.builder.hybrids import OpenedHybrid
    from trtkit.builder.stages import PreparedStage, StageRequest
    from trtkit.jobs.events import Listener


def write_parts(request: StageRequest, backend: Backend, context: JobContext) -> WrittenNetwork:
    """Write the stage's network as TensorRT builds it, with custom ops as plugins if its ONNX file has plugin nodes."""
    stage, onnx = request.stage, request.stage.onnx
    context.report(Phase(f"write network {stage.name}"))
    if onnx is not None:
        register_plugins(backend, onnx.plugins, request.options.compute_capabilities)
    opened = open_hybrid(resolve(ModelConfig.model_validate_json(request.config)))
    network = _network(backend, opened, stage, None if onnx is None else onnx.parsed, context)
    return WrittenNetwork(
        network.graph.network,
        network.graph.builder,
        stage.profiles,
        stage.opt_shapes,
        network.parts,
        quantized=network.graph.quantized,
        constants=network.graph.constants,
        held=(network,),
    )


def parts_network(backend: Backend, opened: OpenedHybrid, stage: PreparedStage, report: Listener) -> StageNetwork:
    """Return a stage's network for the reference executor, in which custom ops are functions."""
    onnx = None if stage.onnx is None else stage.onnx.path
    return _network(backend, opened, stage, onnx, JobContext(report, severity="ERROR"))


def _network(
    backend: Backend, opened: OpenedHybrid, stage: PreparedStage, onnx: Path | None, context: JobContext
) -> StageNetwork:
    """Return a stage's network. onnx: the file to parse."""
    where = opened.source.where
    weights: Mapping[str, Any] = find_part_weights(opened.spec, opened.source.checkpoint, where)
    if opened.quantization is not None:
        weights = opened.quantization.weights(weights)
    material = Material(
        dtype_of(opened.precision),
        Reported(weights, context.report, where),
        onnx,
        stage.onnx.grid_samples if stage.onnx is not None else (),
        form=opened.form,
        severity=context.severity,
    )
    with stored_names(weights, where):
        return write_stage(backend, opened.spec, stage.part_names, material)
