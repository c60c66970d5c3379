"""Jobs that parse the prepared ONNX and let TensorRT build it.

Only what TensorRT itself needs is imported here: this process's peak memory is the build's.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.backends import Backend, load_backend
from trtkit.engine.callbacks import FileWriter, plan_writer, progress_monitor
from trtkit.engine.trt_log import error_lines, warning_lines
from trtkit.errors import BuildError
from trtkit.network.describe import NetworkRecord, describe
from trtkit.network.onnx_parse import Network, check_grid_samples, parse_onnx
from trtkit.network.targets import check_types

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]

# TensorRT streams a plan through a buffer of 64 MiB; a smaller plan takes less memory whole.
_STREAM_FROM_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class ParseRequest:
    """What to parse and at which shapes to describe it. grid_samples: node name and mode, to check the parser."""

    backend: str
    onnx: str
    grid_samples: list[tuple[str, str]]
    opt_shapes: dict[str, list[int]]
    log_path: str
    severity: str = "WARNING"


@dataclass(frozen=True, kw_only=True)
class CompileRequest(ParseRequest):
    """What to build. profiles: input name to `min/opt/max`; target and options as their models dump them."""

    profiles: list[dict[str, Json]]
    target: Json
    options: Json
    plan: str


def describe_only(arguments: Json, report: Callable[[Json], None]) -> Json:
    """Parse a ParseRequest's ONNX and return the network's record without building."""
    request = ParseRequest(**arguments)
    backend = load_backend(request.backend)
    _network, record, _times = _parse(backend, request, report)
    return {"network": record.to_json(), "backend_version": backend.version}


def compile_engine(arguments: Json, report: Callable[[Json], None]) -> Json:
    """Do a CompileRequest: parse, build, write the plan.

    Returns the network's record, the plan's SHA-256 and size, times and peak memory.
    """
    request = CompileRequest(**arguments)
    backend = load_backend(request.backend)
    network, record, times = _parse(backend, request, report)
    check_types(record, request.target["name"], request.target["compute_capabilities"], backend.features)
    monitor = progress_monitor(backend, report)
    builder_config = _builder_config(backend, network, request)
    builder_config.progress_monitor = monitor
    report({"event": "phase", "name": "build"})
    started = time.perf_counter()
    with Path(request.plan).open("wb") as file:
        writer = FileWriter(file)
        is_large = Path(request.onnx).stat().st_size >= _STREAM_FROM_BYTES
        built = (_stream if is_large else _build)(backend, network, builder_config, writer)
    log = Path(request.log_path).read_text(errors="replace")
    if not built:
        raise BuildError(_reasons(log), fix="`trtkit inspect` lists the network's layers")
    build_s = time.perf_counter() - started
    return {
        "network": record.to_json(),
        "backend_version": backend.version,
        "plan": {"size_bytes": writer.size_bytes, "sha256": writer.sha256()},
        "warnings": warning_lines(log),
        "metrics": {**times, "build_s": round(build_s, 3), "peak_memory_mib": round(_peak_memory_mib(), 1)},
    }


def _parse(
    backend: Backend, request: ParseRequest, report: Callable[[Json], None]
) -> tuple[Network, NetworkRecord, dict[str, float]]:
    """Parse, compare with what the ONNX file said, and describe at the `opt` shapes; times in seconds."""
    report({"event": "phase", "name": "parse"})
    started = time.perf_counter()
    network = parse_onnx(backend, Path(request.onnx), request.severity)
    parsed = time.perf_counter()
    check_grid_samples(backend, network, request.grid_samples)
    record = describe(backend, network.definition, {name: tuple(shape) for name, shape in request.opt_shapes.items()})
    times = {"parse_s": round(parsed - started, 3), "describe_s": round(time.perf_counter() - parsed, 3)}
    return network, record, times


def _build(_backend: Backend, network: Network, builder_config: Any, writer: FileWriter) -> bool:
    """Build in memory and write; False where TensorRT cannot. Raises OSError where the disk cannot."""
    plan = network.builder.build_serialized_network(network.definition, builder_config)
    if plan is None:
        return False
    writer.write(plan)
    return True


def _stream(backend: Backend, network: Network, builder_config: Any, writer: FileWriter) -> bool:
    """Build while writing: the plan is never whole in memory. Otherwise like `_build`."""
    stream = plan_writer(backend, writer)
    built = network.builder.build_serialized_network_to_stream(network.definition, builder_config, stream)
    if stream.fault is not None:
        raise stream.fault
    return bool(built)


def _builder_config(backend: Backend, network: Network, request: CompileRequest) -> Any:
    """Return TensorRT's builder config with options, target and profiles set."""
    trt, options = backend.trt, request.options
    config = network.builder.create_builder_config()
    config.builder_optimization_level = options["optimization_level"]
    network.builder.max_threads = options["max_threads"]
    if options["workspace_gib"] is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(options["workspace_gib"] * 2**30))
    capabilities = request.target["compute_capabilities"]
    if capabilities:
        config.num_compute_capabilities = len(capabilities)
        for index, capability in enumerate(capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{capability}"), index)
    for shapes in request.profiles:
        profile = network.builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape["min"], shape["opt"], shape["max"])
        config.add_optimization_profile(profile)
    return config


def _peak_memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _reasons(log: str) -> str:
    """Return TensorRT's own reasons for a failed build."""
    reasons = error_lines(log)
    return "TensorRT cannot build the network: " + ("; ".join(reasons[:6]) if reasons else "it gave no reason")
