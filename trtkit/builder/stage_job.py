"""The job that writes one stage's network and builds it with TensorRT, whoever the writer is.

It imports only what TensorRT needs: this process's peak memory is the build's.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.backends import load_backend
from trtkit.builder.plan_file import PlanBuildRequest, write_plan
from trtkit.builder.stages import StageKernels, StageResult, layers_file, quantized_files
from trtkit.errors import ExecutionError
from trtkit.network.describe import describe
from trtkit.network.fusion import kernels_of, tag_layers
from trtkit.network.targets import capable_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.backends import Backend
    from trtkit.builder.stages import StageRequest, WrittenNetwork
    from trtkit.jobs.job import JobContext


def build_stage(request: StageRequest, context: JobContext) -> StageResult:
    """Write a stage's network, describe it at its `opt` shapes, and build it if the request names a plan."""
    backend, options, write = load_backend(request.backend), request.options, stage_writer(request)
    started = time.perf_counter()
    network = write(request, backend, context)
    written = time.perf_counter()
    record = describe(backend, network.definition, network.opt_shapes)
    record = record.with_quantization(network.quantized, network.kv_cache)
    capabilities = capable_of(record, options.compute_capabilities, backend.features)
    options = replace(options, compute_capabilities=capabilities)
    described = time.perf_counter()
    weight_bytes = sum(record.totals().weight_bytes.values())
    plan, layer_sources = None, None
    if request.plan is not None:
        layer_sources = _save_layers(request, backend, network)
        plan_request = PlanBuildRequest(network.profiles, options, request.plan, context.log)
        plan = write_plan(backend, network, network.weight_bytes or weight_bytes, plan_request, context.report)
    return StageResult(
        record,
        dict(network.part_layers),
        network.profiles,
        network.steps,
        backend.version,
        round(written - started, 3),
        round(described - written, 3),
        network.inputs,
        network.size and network.size(weight_bytes),
        plan,
        layer_sources,
    )


def _save_layers(request: StageRequest, backend: Backend, network: WrittenNetwork) -> tuple[int, ...] | None:
    """Write the network's layers for the reference executor; None if it has plugins, which only TensorRT can run."""
    from trtkit.network.layer_file import LayerFiles, save_layers
    from trtkit.network.layer_graph import read_layers

    assert request.plan is not None
    try:
        layers = read_layers(backend, network.definition, network.constants)
    except ExecutionError:  # of types that TensorRT does not return
        if request.stage.onnx is None:
            raise
        from trtkit.network.onnx.parse import constants_from_onnx

        constants = {**constants_from_onnx(request.stage.onnx.parsed), **network.constants}
        layers = read_layers(backend, network.definition, constants)
    if any(node.kind.startswith("PLUGIN") for node in layers.nodes):
        return None
    quantized = quantized_files(request.folder) if request.quantized is not None else []
    files = LayerFiles(layers_file(request.plan), [*map(Path, request.sources), *quantized])
    return save_layers(layers, files)


def stage_writer(request: StageRequest) -> Callable[[StageRequest, Backend, JobContext], WrittenNetwork]:
    """Return the stage's network writer; the others are not imported."""
    match request.stage.writer:
        case "parser":
            from trtkit.builder.parsed_stage import write_parsed

            return write_parsed
        case "parts":
            from trtkit.builder.parts_stage import write_parts

            return write_parts
        case "speculator":
            from trtkit.builder.speculator_stage import write_speculator

            return write_speculator
        case "decoder":
            from trtkit.builder.decoder_stage import write_decoder

            return write_decoder


def list_kernels(request: StageRequest, context: JobContext) -> StageKernels:
    """Write and build a stage; return its network at each profile's `opt` shapes, and the kernels of its plan."""
    assert request.plan is not None
    backend = load_backend(request.backend)
    network = stage_writer(request)(request, backend, replace(context, severity="VERBOSE"))
    opts = [{name: shapes.opt for name, shapes in profile.items()} for profile in network.profiles]
    records = tuple(describe(backend, network.definition, shapes) for shapes in opts or [dict(network.opt_shapes)])
    tag_layers(network.definition)
    plan_request = PlanBuildRequest(network.profiles, request.options, request.plan, context.log, is_detailed=True)
    write_plan(backend, network, sum(records[0].totals().weight_bytes.values()), plan_request, context.report)
    return StageKernels(records, kernels_of(context.log.read_text(errors="replace")))
