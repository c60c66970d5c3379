"""The job that parses the prepared ONNX and lets TensorRT build it.

Only what TensorRT itself needs is imported here: this process's peak memory is the build's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - requests are read from JSON by their types
from typing import TYPE_CHECKING

from trtkit.backends import load_backend
from trtkit.engine.plan_file import Buildable, CompiledNetwork, PlanRequest, Profiles, write_plan
from trtkit.engine.plugins import register_plugins
from trtkit.jobs.events import Phase
from trtkit.network.describe import describe
from trtkit.network.onnx.parse import check_grid_samples, parse_onnx
from trtkit.network.targets import check_types

if TYPE_CHECKING:
    from trtkit.jobs.job import Context


@dataclass(frozen=True)
class CompileRequest:
    """What to parse, at which shapes to describe it, and how to build it.

    grid_samples: node name and mode, to check the parser. plugins: custom ops to register before.
    plan: None to only describe.
    """

    backend: str
    onnx: Path
    grid_samples: tuple[tuple[str, str], ...]
    opt_shapes: dict[str, tuple[int, ...]]
    profiles: Profiles = ()
    plugins: tuple[str, ...] = ()
    compute_capabilities: tuple[int, ...] = ()
    plan: PlanRequest | None = None


def compile_onnx(request: CompileRequest, context: Context) -> CompiledNetwork:
    """Parse, compare with what the ONNX file said, describe at the `opt` shapes; build if a plan is requested."""
    backend = load_backend(request.backend)
    context.report(Phase("parse"))
    started = time.perf_counter()
    register_plugins(backend, request.plugins, request.compute_capabilities)
    network = parse_onnx(backend, request.onnx, context.severity or "WARNING")
    parsed = time.perf_counter()
    check_grid_samples(backend, network, request.grid_samples)
    record = describe(backend, network.definition, request.opt_shapes)
    described = time.perf_counter()
    plan = None
    if request.plan is not None:
        check_types(record, request.plan.target, request.plan.compute_capabilities, backend.features)
        weight_bytes = request.onnx.stat().st_size
        buildable = Buildable(network.definition, network.builder, request.profiles, weight_bytes)
        plan = write_plan(backend, buildable, request.plan, context)
    return CompiledNetwork(record, backend.version, round(parsed - started, 3), round(described - parsed, 3), plan)
