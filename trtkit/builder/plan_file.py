"""Build a network with TensorRT and write the plan; progress monitor, loggers and stream writer for the build."""

from __future__ import annotations

import hashlib
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from trtkit.builder.stages import BuiltPlan
from trtkit.errors import BuildError
from trtkit.jobs.events import Phase, Progress
from trtkit.jobs.trt_log import error_lines, parsed_node, warning_lines

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.builder.stages import PlanOptions, WrittenNetwork
    from trtkit.jobs.events import Listener
    from trtkit.network.input_spec import ResolvedProfile

# TensorRT streams a plan through a buffer of 64 MiB; building a smaller plan in memory takes less.
_STREAM_FROM_BYTES = 64 * 2**20
# Layers whose output sizes, or whose execution, are known only at run time.
_ALLOCATES = ("NON_ZERO", "NMS", "TRIP_LIMIT", "CONDITION")


@dataclass(frozen=True)
class PlanBuildRequest:
    """How to build, and where to write. log: the file that captures TensorRT's output in this process.

    is_detailed: whether the engine and TensorRT's verbose log record which layers each kernel was made from.
    """

    profiles: tuple[ResolvedProfile, ...]
    options: PlanOptions
    plan: Path
    log: Path
    is_detailed: bool = False


def write_plan(
    backend: Backend, network: WrittenNetwork, weight_bytes: int, request: PlanBuildRequest, report: Listener
) -> BuiltPlan:
    """Build `network` and write its plan. weight_bytes: approximate size of the plan.

    Raises BuildError with TensorRT's own reasons, OSError if the disk cannot hold the plan.
    """
    config = _builder_config(backend, network, request)
    config.progress_monitor = progress_monitor(backend, report)
    report(Phase("build"))
    started = time.perf_counter()
    with request.plan.open("wb") as file:
        writer = FileWriter(file)
        build = _stream if weight_bytes >= _STREAM_FROM_BYTES else _build
        built = build(backend, network, config, writer)
    log = request.log.read_text(errors="replace")
    if not built:
        raise BuildError(_reasons(log), fix=_advice(backend, network.definition))
    build_s = round(time.perf_counter() - started, 3)
    peak_memory_mib = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    return BuiltPlan(writer.size_bytes, writer.sha256(), tuple(warning_lines(log)), build_s, peak_memory_mib)


def _advice(backend: Backend, definition: Any) -> str:
    """Return advice for a network that TensorRT fails to build."""
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


def _build(_backend: Backend, network: WrittenNetwork, config: Any, writer: FileWriter) -> bool:
    """Build in memory, then write; return False if TensorRT fails."""
    plan = network.builder.build_serialized_network(network.definition, config)
    if plan is None:
        return False
    writer.write(plan)
    return True


def _stream(backend: Backend, network: WrittenNetwork, config: Any, writer: FileWriter) -> bool:
    """Build and write the plan as a stream, so that it is never held in memory as one; otherwise like `_build`."""
    stream = plan_writer(backend, writer)
    built = network.builder.build_serialized_network_to_stream(network.definition, config, stream)
    if stream.fault is not None:
        raise stream.fault
    return bool(built)


def _builder_config(backend: Backend, network: WrittenNetwork, request: PlanBuildRequest) -> Any:
    """Return TensorRT's builder config with options, target and profiles."""
    trt, options, builder = backend.trt, request.options, network.builder
    config = builder.create_builder_config()
    if request.is_detailed:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)  # on by default: fp32 would have the 10-bit mantissas of TF32
    if options.sparse_weights:
        config.set_flag(trt.BuilderFlag.SPARSE_WEIGHTS)
    if options.weight_streaming:
        config.set_flag(trt.BuilderFlag.WEIGHT_STREAMING)
    elif can_be_captured(backend, network.definition):
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    config.builder_optimization_level = options.optimization_level
    builder.max_threads = options.max_threads
    if options.workspace_gib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(options.workspace_gib * 2**30))
    capabilities = options.compute_capabilities
    if capabilities:
        config.num_compute_capabilities = len(capabilities)
        for index, capability in enumerate(capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{capability}"), index)
    for shapes in request.profiles:
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape.min, shape.opt, shape.max)
        config.add_optimization_profile(profile)
    return config


def can_be_captured(backend: Backend, definition: Any) -> bool:
    """Whether a CUDA graph can capture the engine, i.e. TensorRT allocates no memory while it runs.

    TensorRT-RTX has a flag for that, and rejects it if sizes depend on data.
    """
    layers = (definition.get_layer(index) for index in range(definition.num_layers))
    has_flag = hasattr(backend.trt.BuilderFlag, "REQUIRE_USER_ALLOCATION")
    return has_flag and not allocates(map(backend.layer_type, layers))


def allocates(kinds: Iterable[str]) -> bool:
    """Whether a network with these layer types allocates memory of data-dependent sizes at run time."""
    return any(kind in _ALLOCATES for kind in kinds)


def _reasons(log: str) -> str:
    """Return TensorRT's own reasons for a failed build."""
    reasons = error_lines(log)
    return "TensorRT cannot build the network: " + ("; ".join(reasons[:6]) if reasons else "it gave no reason")


Json = dict[str, Any]

# Progress events that follow sooner than this are dropped.
_EVENT_INTERVAL_S = 0.05


def progress_monitor(backend: Backend, report: Listener) -> Any:
    """Return an IProgressMonitor that reports the steps of every phase, including nested ones."""

    class Monitor(backend.trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self._totals: dict[str, int] = {}
            self._reported_s = 0.0

        def phase_start(self, name: str, _parent: str | None, num_steps: int) -> None:
            self._totals[name] = num_steps
            self._send(name, 0)

        def step_complete(self, name: str, step: int) -> bool:
            self._send(name, step + 1)
            return True

        def phase_finish(self, name: str) -> None:
            self._totals.pop(name, None)

        def _send(self, name: str, done: int) -> None:
            now = time.monotonic()
            if now - self._reported_s >= _EVENT_INTERVAL_S:
                self._reported_s = now
                report(Progress(name, done, self._totals.get(name, 0)))

    return Monitor()


def parse_recorder(backend: Backend) -> Any:
    """Return a silent logger that keeps the name of the last node that a parser reached as `last_node`."""

    class LogRecorder(backend.trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.last_node = ""

        def log(self, _severity: Any, text: str) -> None:
            self.last_node = parsed_node(text) or self.last_node

    return LogRecorder()


class FileWriter:
    """Write a plan to `file` and hash it in a second thread; hashing releases the interpreter lock."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hashing = ThreadPoolExecutor(max_workers=1)
        self._sha256, self.size_bytes = hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write the next part and return its size. Raises OSError if writing fails."""
        part = memoryview(data)
        self._hashing.submit(self._sha256.update, part)
        try:
            self._file.write(part)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._file.name) from None
        self.size_bytes += part.nbytes
        return part.nbytes

    def sha256(self) -> str:
        """Return the digest of everything written; no more can be written after that."""
        self._hashing.shutdown()
        return self._sha256.hexdigest()


def plan_writer(backend: Backend, writer: FileWriter) -> Any:
    """Return TensorRT's stream writer over `writer`. TensorRT swallows exceptions, so the first is kept as `fault`."""

    class StreamWriter(backend.trt.IStreamWriter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fault: OSError | None = None

        def write(self, data: bytes) -> int:
            try:
                return writer.write(data)
            except OSError as error:
                self.fault = self.fault or error
                return 0

    return StreamWriter()
