"""Jobs that parse the prepared ONNX and let TensorRT build it."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.backends import Backend, load_backend
from trtkit.config.schema import BuildOptions, ShapeRange
from trtkit.config.targets import Target
from trtkit.engine.callbacks import plan_writer, progress_monitor
from trtkit.engine.trt_log import error_lines, warning_lines
from trtkit.errors import BuildError
from trtkit.network.describe import NetworkRecord, describe
from trtkit.network.onnx_parse import Network, check_grid_samples, parse_onnx
from trtkit.network.targets import check_types

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]


def describe_only(arguments: Json, report: Callable[[Json], None]) -> Json:
    """Parse `onnx` and return the network's record without building."""
    backend = load_backend(arguments["backend"])
    _network, record, _seconds = _parse(backend, arguments, report)
    return {"network": record.to_json(), "backend_version": backend.version}


def compile_engine(arguments: Json, report: Callable[[Json], None]) -> Json:
    """Parse `onnx`, build it for `target` with `profiles` and `options`, stream the plan to `plan`.

    Returns the network's record, the plan's SHA-256 and size, times and peak memory.
    """
    backend = load_backend(arguments["backend"])
    network, record, parse_s = _parse(backend, arguments, report)
    target = Target.model_validate(arguments["target"])
    check_types(record, target)
    builder_config, monitor = _builder_config(backend, network, arguments, target, report)
    report({"event": "phase", "name": "build"})
    started = time.perf_counter()
    with Path(arguments["plan"]).open("wb") as file:
        writer = plan_writer(backend, file)
        built = network.builder.build_serialized_network_to_stream(network.definition, builder_config, writer)
    if writer.fault is not None:
        raise writer.fault
    log = Path(arguments["log_path"]).read_text(errors="replace")
    if not built:
        raise BuildError(_reasons(log), fix="`trtkit inspect` lists the network's layers")
    del monitor
    return {
        "network": record.to_json(),
        "backend_version": backend.version,
        "plan": {"size_bytes": writer.size_bytes, "sha256": writer.sha256.hexdigest()},
        "warnings": warning_lines(log),
        "metrics": {
            "parse_s": round(parse_s, 3),
            "build_s": round(time.perf_counter() - started, 3),
            "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        },
    }


def _parse(backend: Backend, arguments: Json, report: Callable[[Json], None]) -> tuple[Network, NetworkRecord, float]:
    """Parse, compare with what the ONNX file said, and describe at the `opt` shapes."""
    report({"event": "phase", "name": "parse"})
    started = time.perf_counter()
    network = parse_onnx(backend, Path(arguments["onnx"]), arguments.get("severity", "WARNING"))
    parse_s = time.perf_counter() - started
    check_grid_samples(backend, network, [(node, mode) for node, mode in arguments["grid_samples"]])
    shapes = {name: tuple(shape) for name, shape in arguments["opt_shapes"].items()}
    return network, describe(backend, network.definition, shapes), parse_s


def _builder_config(
    backend: Backend, network: Network, arguments: Json, target: Target, report: Callable[[Json], None]
) -> tuple[Any, Any]:
    """Return the builder config and the progress monitor, which must live as long as the build."""
    trt, options = backend.trt, BuildOptions.model_validate(arguments["options"])
    config = network.builder.create_builder_config()
    config.builder_optimization_level = options.optimization_level
    network.builder.max_threads = options.max_threads
    if options.workspace_gib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(options.workspace_gib * 2**30))
    if target.compute_capabilities:
        config.num_compute_capabilities = len(target.compute_capabilities)
        for index, capability in enumerate(target.compute_capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{capability}"), index)
    for profile in arguments["profiles"]:
        config.add_optimization_profile(_profile(network, profile))
    monitor = progress_monitor(backend, report)
    config.progress_monitor = monitor
    return config, monitor


def _profile(network: Network, shapes: Json) -> Any:
    """Return a TensorRT profile; an input that holds a shape gets its values."""
    profile = network.builder.create_optimization_profile()
    inputs = [network.definition.get_input(index) for index in range(network.definition.num_inputs)]
    for tensor in inputs:
        if tensor.name in shapes:
            shape = ShapeRange.model_validate(shapes[tensor.name])
            profile.set_shape(tensor.name, shape.min, shape.opt, shape.max)
    return profile


def _reasons(log: str) -> str:
    """Return TensorRT's own reasons for a failed build."""
    reasons = error_lines(log)
    return "TensorRT cannot build the network: " + ("; ".join(reasons[:6]) if reasons else "it gave no reason")
