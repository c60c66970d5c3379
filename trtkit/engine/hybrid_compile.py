"""The job that writes one stage of a hybrid as a network and lets TensorRT build it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.backends import load_backend
from trtkit.config.schema import ModelConfig
from trtkit.dtypes import dtype_of
from trtkit.engine.decoder_compile import Reported
from trtkit.engine.hybrids import OpenedHybrid, open_hybrid
from trtkit.engine.plan_file import Buildable, PlanRequest, write_plan
from trtkit.engine.plugins import register_plugins
from trtkit.jobs.events import Phase
from trtkit.models.hybrids.weights import find_part_weights
from trtkit.network.describe import describe
from trtkit.network.hybrid import Material, StageNetwork, write_stage
from trtkit.network.targets import check_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.backends import Backend
    from trtkit.jobs.job import Context

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """What to build. stage: as `prepare_hybrid` returned it. plan: empty to only describe."""

    backend: str
    config: Json
    stage: Json
    target: Json
    plan: str


def compile_stage(arguments: Json, context: Context) -> Json:
    """Do a StageRequest; return the network's record, layers by part and, where built, plan, warnings and metrics."""
    request = StageRequest(**arguments)
    config, backend, stage = ModelConfig.model_validate(request.config), load_backend(request.backend), request.stage
    context.report(Phase(f"write network {stage['name']}"))
    started = time.perf_counter()
    network = stage_network(backend, open_hybrid(config), _with_plugins(request, backend), context)
    written = time.perf_counter()
    shapes = {name: tuple(shape) for name, shape in stage["opt_shapes"].items()}
    record = describe(backend, network.graph.network, shapes)
    check_types(record, request.target["name"], request.target["compute_capabilities"], backend.features)
    metrics = {"parse_s": round(written - started, 3), "describe_s": round(time.perf_counter() - written, 3)}
    result = {"network": record.to_json(), "backend_version": backend.version, "part_layers": dict(network.parts)}
    if not request.plan:
        return result
    plan_request = PlanRequest(
        profiles=stage["profiles"],
        target=request.target,
        options=request.config["build"],
        plan=request.plan,
    )
    weight_bytes = sum(record.totals()["weight_bytes"].values())
    built = write_plan(
        backend, Buildable(network.graph.network, network.graph.builder, weight_bytes), plan_request, context
    )
    metrics |= {"build_s": built.pop("build_s"), "peak_memory_mib": built.pop("peak_memory_mib")}
    return {**result, "metrics": metrics, **built}


def _with_plugins(request: StageRequest, backend: Backend) -> Json:
    """Return the stage with the ONNX file that TensorRT is to parse, its plugins registered."""
    plugins = request.stage.get("plugins") or {"ops": []}
    if not plugins["ops"]:
        return request.stage
    register_plugins(backend, plugins["ops"], request.target["compute_capabilities"])
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
