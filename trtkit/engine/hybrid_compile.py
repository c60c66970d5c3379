"""The job that writes one stage of a hybrid as a network and lets TensorRT build it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.backends import load_backend
from trtkit.dtypes import dtype_of
from trtkit.engine.decoder_compile import Reported
from trtkit.engine.hybrids import OpenedHybrid, open_hybrid
from trtkit.engine.jobs import CompiledStage
from trtkit.engine.plan_file import Buildable, CompiledNetwork, Profiles, write_plan
from trtkit.engine.plugins import register_plugins
from trtkit.jobs.events import Phase
from trtkit.jobs.json_form import from_json
from trtkit.models.hybrids.weights import find_part_weights
from trtkit.network.describe import describe
from trtkit.network.hybrid import Material, StageNetwork, write_stage
from trtkit.network.targets import check_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.backends import Backend
    from trtkit.engine.jobs import StageRequest
    from trtkit.jobs.job import Context

Json = dict[str, Any]


def compile_stage(request: StageRequest, context: Context) -> CompiledStage:
    """Write a stage's network, describe it, and build it if a plan is requested."""
    backend, stage, target = load_backend(request.backend), request.stage, request.target
    context.report(Phase(f"write network {stage['name']}"))
    started = time.perf_counter()
    network = stage_network(backend, open_hybrid(request.config), _with_plugins(request, backend), context)
    written = time.perf_counter()
    shapes = {name: tuple(shape) for name, shape in stage["opt_shapes"].items()}
    record = describe(backend, network.graph.network, shapes).with_quantization(network.graph.quantized)
    described = time.perf_counter()
    check_types(record, target.name, target.compute_capabilities, backend.features)
    plan = None
    if request.plan is not None:
        weight_bytes = sum(record.totals().weight_bytes.values())
        profiles = from_json(Profiles, stage["profiles"])
        buildable = Buildable(network.graph.network, network.graph.builder, profiles, weight_bytes)
        plan = write_plan(backend, buildable, request.plan, context)
    times = round(written - started, 3), round(described - written, 3)
    return CompiledStage(CompiledNetwork(record, backend.version, *times, plan), dict(network.parts))


def _with_plugins(request: StageRequest, backend: Backend) -> Json:
    """Return the stage with the ONNX file that TensorRT is to parse, its plugins registered."""
    plugins = request.stage.get("plugins")
    if plugins is None:
        return request.stage
    register_plugins(backend, plugins["ops"], request.target.compute_capabilities)
    return {**request.stage, "onnx": plugins["onnx"]}


def stage_network(backend: Backend, opened: OpenedHybrid, stage: Json, context: Context) -> StageNetwork:
    """Return a stage's network. stage: as `prepare_hybrid` returned it."""
    weights: Mapping[str, Any] = find_part_weights(opened.spec, opened.source.checkpoint, opened.source.where)
    if opened.quantization is not None:
        weights = opened.quantization.weights(weights)
    material = Material(
        dtype_of(opened.precision),
        Reported(weights, context.report),
        Path(stage["onnx"]) if stage["onnx"] else None,
        [(node, mode) for node, mode in stage["grid_samples"]],
        form=opened.form,
        severity=context.severity,
    )
    return write_stage(backend, opened.spec, stage["parts"], material)
