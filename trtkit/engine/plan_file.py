"""Let TensorRT build a network, whoever wrote it, and write the plan."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - requests are read from JSON by their types
from typing import TYPE_CHECKING, Any

from trtkit.engine.callbacks import FileWriter, plan_writer, progress_monitor
from trtkit.errors import BuildError
from trtkit.jobs.events import Phase
from trtkit.jobs.trt_log import error_lines, warning_lines
from trtkit.network.record import NetworkRecord  # noqa: TC001

if TYPE_CHECKING:
    from trtkit.backends import Backend
    from trtkit.jobs.job import Context

# TensorRT streams a plan through a buffer of 64 MiB; a smaller plan takes less memory whole.
_STREAM_FROM_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ShapeBounds:
    """The shapes of one input in an optimization profile."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


Profiles = tuple[dict[str, ShapeBounds], ...]


@dataclass(frozen=True)
class PlanRequest:
    """How to build, and the plan to write. compute_capabilities: SM numbers; empty for all that the backend covers.

    workspace_gib: None for all of the GPU's memory. target: its name.
    """

    path: Path
    target: str
    compute_capabilities: tuple[int, ...]
    optimization_level: int
    max_threads: int
    workspace_gib: float | None


@dataclass(frozen=True)
class WrittenPlan:
    """A plan on disk. warnings: of TensorRT. peak_memory_mib: of the process that wrote it."""

    size_bytes: int
    sha256: str
    warnings: tuple[str, ...]
    build_s: float
    peak_memory_mib: float


@dataclass(frozen=True)
class CompiledNetwork:
    """A network as TensorRT has it, and its plan; None if it was only described.

    parse_s, describe_s: what parsing or writing it, and describing it took.
    """

    network: NetworkRecord
    backend_version: str
    parse_s: float
    describe_s: float
    plan: WrittenPlan | None


@dataclass(frozen=True, eq=False)
class Buildable:
    """A network ready to be built. weight_bytes: about what the plan will hold."""

    definition: Any
    builder: Any
    profiles: Profiles
    weight_bytes: int


def write_plan(backend: Backend, network: Buildable, request: PlanRequest, context: Context) -> WrittenPlan:
    """Build `network` and write its plan.

    Raises BuildError with TensorRT's own reasons, OSError where the disk cannot hold the plan.
    """
    monitor = progress_monitor(backend, context.report)
    config = _builder_config(backend, network, request)
    config.progress_monitor = monitor
    context.report(Phase("build"))
    started = time.perf_counter()
    with request.path.open("wb") as file:
        writer = FileWriter(file)
        build = _stream if network.weight_bytes >= _STREAM_FROM_BYTES else _build
        built = build(backend, network, config, writer)
    log = context.log.read_text(errors="replace")
    if not built:
        raise BuildError(_reasons(log), fix=_advice(backend, network.definition))
    build_s = time.perf_counter() - started
    return WrittenPlan(
        writer.size_bytes,
        writer.sha256(),
        tuple(warning_lines(log)),
        round(build_s, 3),
        round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    )


def _advice(backend: Backend, definition: Any) -> str:
    """Return what to do about a network that TensorRT does not build."""
    layers = (definition.get_layer(index) for index in range(definition.num_layers))
    if not any(backend.layer_type(layer) == "CONDITION" for layer in layers):
        return "`trtkit inspect` lists the network's layers"
    inputs = [definition.get_input(index) for index in range(definition.num_inputs)]
    scalars = ", ".join(f"`{tensor.name}`" for tensor in inputs if max(tensor.shape, default=1) == 1)
    of = f", here one of {scalars}," if scalars else ""
    return (
        "TensorRT builds both branches of every `If`, so both must fit the profile's shapes; if an input chooses"
        f"{of} give it the value you use: `fixed_inputs: {{NAME: VALUE}}`"
    )


def _build(_backend: Backend, network: Buildable, config: Any, writer: FileWriter) -> bool:
    """Build in memory and write; False where TensorRT cannot."""
    plan = network.builder.build_serialized_network(network.definition, config)
    if plan is None:
        return False
    writer.write(plan)
    return True


def _stream(backend: Backend, network: Buildable, config: Any, writer: FileWriter) -> bool:
    """Build while writing: the plan is never whole in memory. Otherwise like `_build`."""
    stream = plan_writer(backend, writer)
    built = network.builder.build_serialized_network_to_stream(network.definition, config, stream)
    if stream.fault is not None:
        raise stream.fault
    return bool(built)


def _builder_config(backend: Backend, network: Buildable, request: PlanRequest) -> Any:
    """Return TensorRT's builder config with options, target and profiles set."""
    trt, builder = backend.trt, network.builder
    config = builder.create_builder_config()
    config.builder_optimization_level = request.optimization_level
    builder.max_threads = request.max_threads
    if request.workspace_gib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(request.workspace_gib * 2**30))
    if request.compute_capabilities:
        config.num_compute_capabilities = len(request.compute_capabilities)
        for index, capability in enumerate(request.compute_capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{capability}"), index)
    for shapes in network.profiles:
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape.min, shape.opt, shape.max)
        config.add_optimization_profile(profile)
    return config


def _reasons(log: str) -> str:
    """Return TensorRT's own reasons for a failed build."""
    reasons = error_lines(log)
    return "TensorRT cannot build the network: " + ("; ".join(reasons[:6]) if reasons else "it gave no reason")
