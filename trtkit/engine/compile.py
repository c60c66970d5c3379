"""Jobs that parse the prepared ONNX and let TensorRT build it.

Only what TensorRT itself needs is imported here: this process's peak memory is the build's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.backends import Backend, load_backend
from trtkit.engine.plan_file import Buildable, PlanRequest, write_plan
from trtkit.engine.plugins import register_plugins
from trtkit.jobs.events import Phase
from trtkit.network.describe import NetworkRecord, describe
from trtkit.network.onnx.parse import Network, check_grid_samples, parse_onnx
from trtkit.network.targets import check_types

if TYPE_CHECKING:
    from trtkit.jobs.job import Context

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ParseRequest:
    """What to parse and at which shapes to describe it.

    grid_samples: node name and mode, to check the parser. plugins: custom ops to register before, capabilities: SM
    numbers that their kernels are compiled for.
    """

    backend: str
    onnx: str
    grid_samples: list[tuple[str, str]]
    opt_shapes: dict[str, list[int]]
    plugins: tuple[str, ...] = ()
    capabilities: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompileRequest(ParseRequest, PlanRequest):
    """What to parse and how to build it."""


def describe_only(arguments: Json, context: Context) -> Json:
    """Parse a ParseRequest's ONNX and return the network's record without building."""
    request = ParseRequest(**arguments)
    backend = load_backend(request.backend)
    _network, record, _times = _parse(backend, request, context)
    return {"network": record.to_json(), "backend_version": backend.version}


def compile_engine(arguments: Json, context: Context) -> Json:
    """Do a CompileRequest: parse, build, write the plan.

    Returns the network's record, the plan's SHA-256 and size, times and peak memory.
    """
    request = CompileRequest(**arguments)
    backend = load_backend(request.backend)
    network, record, times = _parse(backend, request, context)
    check_types(record, request.target["name"], request.target["compute_capabilities"], backend.features)
    buildable = Buildable(network.definition, network.builder, Path(request.onnx).stat().st_size)
    built = write_plan(backend, buildable, request, context)
    times |= {"build_s": built.pop("build_s"), "peak_memory_mib": built.pop("peak_memory_mib")}
    return {"network": record.to_json(), "backend_version": backend.version, "metrics": times, **built}


def _parse(
    backend: Backend, request: ParseRequest, context: Context
) -> tuple[Network, NetworkRecord, dict[str, float]]:
    """Parse, compare with what the ONNX file said, and describe at the `opt` shapes; times in seconds."""
    context.report(Phase("parse"))
    started = time.perf_counter()
    register_plugins(backend, request.plugins, request.capabilities)
    network = parse_onnx(backend, Path(request.onnx), context.severity or "WARNING")
    parsed = time.perf_counter()
    check_grid_samples(backend, network, request.grid_samples)
    record = describe(backend, network.definition, {name: tuple(shape) for name, shape in request.opt_shapes.items()})
    times = {"parse_s": round(parsed - started, 3), "describe_s": round(time.perf_counter() - parsed, 3)}
    return network, record, times
