"""A plan loaded by TensorRT: execution contexts, layer times and calls on a device, with every refusal as an error."""

from __future__ import annotations

import math
import mmap
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trtkit.dtypes import from_tensorrt
from trtkit.errors import BackendError
from trtkit.network.trt_errors import error_recorder
from trtkit.reference import to_tensor
from trtkit.runtime.device import write
from trtkit.runtime.runtime_cache import RuntimeCache
from trtkit.runtime.weight_budget import over_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.runtime.communicator import Communicator
    from trtkit.runtime.device import CapturedGraph, Stream

    Shape = tuple[int, ...]


@dataclass(frozen=True)
class EngineTensor:
    """An input or output. shape: -1 for dynamic axes. is_on_host: read on the host while shapes are computed.

    aliases: for an output, the input whose memory it is written to; empty if it has its own.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    is_on_host: bool
    aliases: str = ""


class LoadedEngine:
    """A deserialized engine. cache: where kernels compiled for this GPU are saved; None for nowhere.

    defers_weights: leave the weights in the plan's file until `load_weights`. Raises BackendError if TensorRT does not
    load the plan on this GPU, or does not support deferred weights.
    """

    def __init__(
        self,
        backend: Backend,
        plan: Path,
        stream: Stream,
        cache: Path | None = None,
        *,
        defers_weights: bool = False,
    ) -> None:
        self.backend, self.stream = backend, stream
        self._logger = backend.logger()
        self._runtime = backend.trt.Runtime(self._logger)
        self.errors = error_recorder(backend, has_gpu=True)
        self._runtime.error_recorder = self.errors
        self._blob = _mapped(plan) if defers_weights else None
        if defers_weights:
            self._defer_weights()
        self._engine = self._runtime.deserialize_cuda_engine(self._blob or _mapped(plan))
        if self._engine is None:
            fix = "build it for this GPU (`--target`), with the TensorRT version that is installed here"
            reason = "".join(f": {text}" for text in self.errors.texts[-1:])
            what = f"{backend.name} {backend.version} cannot load the plan on this machine{reason}"
            raise BackendError(what, str(plan), fix)
        self.plan = plan
        tensors = [self._tensor(self._engine.get_tensor_name(index)) for index in range(self._engine.num_io_tensors)]
        mode = backend.trt.TensorIOMode.INPUT
        self.inputs = {tensor.name: tensor for tensor in tensors if self._engine.get_tensor_mode(tensor.name) == mode}
        self.outputs = {tensor.name: tensor for tensor in tensors if tensor.name not in self.inputs}
        self._cache = RuntimeCache(backend.trt, self._engine, cache)
        self._contexts: dict[tuple[int, bool], ExecutionContext] = {}
        self._scratch: torch.Tensor | None = None
        self._keep_kernels = weakref.finalize(self, self._cache.save)  # once: when closed, dropped, or at exit

    @property
    def profiles(self) -> int:
        """Number of optimization profiles; one for static shapes."""
        return max(int(self._engine.num_optimization_profiles), 1)

    @property
    def streamable_bytes(self) -> int:
        """Bytes of weights that may stay in host memory; 0 unless built with `build.weight_streaming`."""
        return int(self._engine.streamable_weights_size)

    @property
    def is_streaming(self) -> bool:
        """Whether weights stay in host memory: each enqueue then waits for the engine and cannot be captured."""
        return bool(self.streamable_bytes) and int(self._engine.weight_streaming_budget_v2) < self.streamable_bytes

    @property
    def pending_context_bytes(self) -> int:
        """GPU memory that the first context will take for all of them at this budget, by TensorRT's own figure."""
        return self._scratch_bytes if self._scratch is None else 0

    @property
    def _scratch_bytes(self) -> int:
        return max(map(int, map(self._engine.get_device_memory_size_for_profile_v2, range(self.profiles))))

    def stream_weights(self, budget_bytes: int) -> None:
        """Keep `budget_bytes` of the weights on the GPU; no context may exist yet. Raises RequestError, BackendError.

        The other weights stay in host memory and are copied whenever they are needed.
        """
        if budget_bytes > self.streamable_bytes:
            raise over_budget(budget_bytes, self.streamable_bytes)
        self.errors.clear()
        self._engine.weight_streaming_budget_v2 = budget_bytes
        if int(self._engine.weight_streaming_budget_v2) != budget_bytes:  # the binding does not report failure
            what = f"TensorRT refused a weight budget of {budget_bytes} bytes{_reason(self.errors.texts)}"
            raise BackendError(what, str(self.plan))

    def _defer_weights(self) -> None:
        """Deserialize the next engine without its weights. Raises BackendError."""
        if not hasattr(self._runtime, "defer_weights_loading"):  # TensorRT-RTX has it from version 1.7 on
            what = f"{self.backend.name} {self.backend.version} loads an engine's weights with the engine"
            fix = "build with TensorRT-RTX (`--target`), or keep all weights on the GPU"
            raise BackendError(what, "offload", fix)
        self._runtime.defer_weights_loading = True

    def load_weights(self) -> None:
        """Load deferred weights onto the GPU unless they are there; from any thread. Raises BackendError."""
        if self._blob is None or self._engine.weights_loaded:
            return
        self.errors.clear()
        if not self._engine.load_weights(self._blob):
            raise BackendError(f"TensorRT refused to load weights{_reason(self.errors.texts)}", str(self.plan))

    def unload_weights(self) -> None:
        """Free deferred weights on the GPU once the engine's work is done; contexts stay. Raises BackendError."""
        if self._blob is None or not self._engine.weights_loaded:
            return
        self.stream.synchronize()
        self.errors.clear()
        if not self._engine.unload_weights():
            raise BackendError(f"TensorRT refused to unload weights{_reason(self.errors.texts)}", str(self.plan))

    def context(self, profile: int = 0, *, is_captured: bool = False) -> ExecutionContext:
        """Return the execution context of a profile, created on first use.

        is_captured: whether CUDA graphs hold its launches; kernels of a new shape are then compiled synchronously.
        Raises BackendError if TensorRT refuses, for example for lack of memory.
        """
        key = profile, is_captured
        if key not in self._contexts:
            self.errors.clear()
            context = self._cache.execution_context(self._engine, is_captured=is_captured)
            if context is None:
                raise BackendError(f"TensorRT refused an execution context{_reason(self.errors.texts)}", str(self.plan))
            self._contexts[key] = ExecutionContext(self, context, profile)
        return self._contexts[key]

    def scratch(self) -> torch.Tensor:
        """Return the device memory that all contexts share; one stream runs their work in order.

        It fits the largest profile and is kept until `close`, since CUDA graphs hold its address.
        """
        if self._scratch is None:
            self._scratch = self.stream.empty((max(self._scratch_bytes, 1),), torch.uint8)
        return self._scratch

    def context_for(self, shapes: Mapping[str, Shape], *, is_captured: bool = False) -> ExecutionContext:
        """Return the context of the first profile that covers the inputs' shapes. Raises BackendError if none does."""
        for profile in range(self.profiles):
            if all(self._covers(profile, name, shape) for name, shape in shapes.items()):
                return self.context(profile, is_captured=is_captured)
        what = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        fix = "use a shape within a profile, or build with a wider one"
        raise BackendError(f"no optimization profile covers {what}", str(self.plan), fix)

    def save_kernels(self) -> None:
        """Save the kernels compiled for this GPU so far, since a killed process cannot."""
        self._cache.save()

    def close(self) -> None:
        """Save the kernels compiled for this GPU for the next start, and drop contexts and engine."""
        self._keep_kernels()
        self._contexts.clear()
        self._scratch = self._blob = None
        self._engine = self._runtime = None  # TensorRT frees the weights with the last reference

    def _covers(self, profile: int, name: str, shape: Shape) -> bool:
        declared = self.inputs[name].shape
        if -1 not in declared:
            return shape == declared
        low, _, high = self._engine.get_tensor_profile_shape(name, profile)
        bounds = zip(low, shape, high, strict=True)
        return len(shape) == len(declared) and all(least <= size <= most for least, size, most in bounds)

    def _tensor(self, name: str) -> EngineTensor:
        engine = self._engine
        return EngineTensor(
            name,
            getattr(torch, from_tensorrt(engine.get_tensor_dtype(name).name).torch),
            tuple(engine.get_tensor_shape(name)),
            engine.get_tensor_location(name) == self.backend.trt.TensorLocation.HOST,
            engine.get_aliased_input_tensor(name) or "",
        )


class ExecutionContext:
    """An execution context of one profile. Addresses stay set until they are set again."""

    def __init__(self, engine: LoadedEngine, context: Any, profile: int) -> None:
        self._engine, self._context = engine, context
        context.error_recorder = engine.errors
        scratch = engine.scratch()
        context.set_device_memory(scratch.data_ptr(), scratch.nbytes)  # errors in it surface at the launch
        self._ask(f"profile {profile}", context.set_optimization_profile_async, profile, engine.stream.handle)

    def set_input(self, name: str, shape: Shape, tensor: torch.Tensor) -> None:
        """Set an input's shape, and the memory [of at least as many elements] that it is read from."""
        self._ask(f"input `{name}` {list(shape)}", self._context.set_input_shape, name, shape)
        self.set_address(name, tensor)

    def set_address(self, name: str, tensor: torch.Tensor) -> None:
        self._ask(f"the address of `{name}`", self._context.set_tensor_address, name, tensor.data_ptr())

    def set_output_allocator(self, name: str, allocator: Any) -> None:
        """Let an output whose size depends on the data be allocated while the engine runs."""
        self._ask(f"the allocator of `{name}`", self._context.set_output_allocator, name, allocator)

    def set_communicator(self, communicator: Communicator) -> None:
        """Connect the context with those of the other ranks; returns once all ranks have called this."""
        self._ask("the communicator of the ranks", self._context.set_communicator, communicator.handle)

    def shape(self, name: str) -> Shape:
        """Return a tensor's shape at the inputs' shapes; -1 for axes that depend on the data."""
        return tuple(self._context.get_tensor_shape(name))

    def is_capturable(self) -> bool:
        """Whether a CUDA graph can hold the launch at the current shapes."""
        if self._engine.is_streaming:
            return False
        ask = getattr(self._context, "is_stream_capturable", None)  # full TensorRT has no such method
        return ask is None or bool(ask(self._engine.stream.handle))

    def enqueue(self) -> None:
        """Enqueue the engine's work on its stream."""
        self._ask("the engine", self._context.execute_async_v3, self._engine.stream.handle)

    def layer_seconds(self, run: Callable[[], object]) -> dict[str, float]:
        """Call `run`, which enqueues once; return the time of each layer, in the order of execution."""
        profiler = layer_profiler(self._engine.backend)
        self._context.profiler = profiler
        try:
            run()
            self._engine.stream.synchronize()
        finally:
            self._context.profiler = None
        return dict(profiler.seconds)

    def _ask(self, what: str, call: Callable[..., object], *arguments: object) -> None:
        """Call TensorRT; raise BackendError with its own message for this call if it refuses."""
        errors = self._engine.errors
        errors.clear()
        if not call(*arguments):
            raise BackendError(f"TensorRT refused {what}{_reason(errors.texts)}", str(self._engine.plan))


def _mapped(plan: Path) -> mmap.mmap | bytes:
    """Return a file's contents as a mapping, which takes no memory of this process."""
    with plan.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if plan.stat().st_size else b""


def _reason(texts: Sequence[str]) -> str:
    return f": {texts[-1]}" if texts else ""


def layer_profiler(backend: Backend) -> Any:
    """Return an IProfiler. Its `seconds` are by layer, in the order reported; those of equal names are summed."""
    base: Any = backend.trt.IProfiler

    class LayerProfiler(base):  # type: ignore[misc]  # TensorRT's class is known when it is loaded
        def __init__(self) -> None:
            base.__init__(self)
            self.seconds: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.seconds[layer_name] = self.seconds.get(layer_name, 0.0) + ms / 1e3

    return LayerProfiler()


Tensors = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class _Launch:
    """Memory that a launch reads and writes, and its CUDA graph if there is one."""

    inputs: Tensors
    outputs: Tensors
    graph: CapturedGraph | None = None


class EngineExecution:
    """A StageExecution on TensorRT. Its work is enqueued on `stream`, on which the caller waits.

    has_cuda_graphs: launches are captured at the first run of each shape and replayed; buffers are then kept. An engine
    whose shapes depend on its data, or on values it reads on the host, is launched each time. cache: where kernels
    compiled for this GPU are saved. Raises BackendError if TensorRT does not load the plan on this GPU.
    """

    def __init__(
        self, backend: Backend, plan: Path, stream: Stream, cache: Path | None = None, *, has_cuda_graphs: bool = False
    ) -> None:
        self._engine = LoadedEngine(backend, plan, stream, cache)
        self._stream, self._has_cuda_graphs = stream, has_cuda_graphs
        self._captured: dict[tuple[tuple[int, ...], ...], _Launch] = {}
        self.input_names, self.output_names = tuple(self._engine.inputs), tuple(self._engine.outputs)

    def run(self, inputs: Mapping[str, Any]) -> Tensors:
        """Return the outputs for arrays or tensors by input name, on the device; valid once the stream is done.

        With CUDA graphs they are overwritten by the next run of the same shapes.
        """
        tensors = {name: to_tensor(inputs[name], name) for name in self.input_names}
        self._stream.wait_for_current()
        return self._replay(tensors) if self._has_cuda_graphs else self._launch(tensors).outputs

    @property
    def streamable_bytes(self) -> int:
        """Bytes of weights that may stay in host memory."""
        return self._engine.streamable_bytes

    def stream_weights(self, budget_bytes: int) -> None:
        """Keep `budget_bytes` of the weights on the GPU; see LoadedEngine. Launches are then not captured."""
        self._engine.stream_weights(budget_bytes)
        self._has_cuda_graphs = self._has_cuda_graphs and not self._engine.is_streaming

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return the time of each of the engine's layers, in the order of execution."""
        tensors = {name: to_tensor(inputs[name], name) for name in self.input_names}
        context = self._context(tensors)
        return context.layer_seconds(lambda: self._launch(tensors))

    def _context(self, tensors: Tensors) -> ExecutionContext:
        return self._engine.context_for(_shapes(tensors), is_captured=self._has_cuda_graphs)

    def _launch(self, tensors: Tensors) -> _Launch:
        """Enqueue copies of the inputs and the engine's work."""
        context = self._context(tensors)
        inputs = {name: self._room(name, tensor) for name, tensor in tensors.items()}
        self._copy(tensors, inputs)
        for name, tensor in inputs.items():
            context.set_input(name, tuple(tensor.shape), tensor)
        outputs, allocators = {}, {}
        for name, output in self._engine.outputs.items():
            shape = context.shape(name)
            if -1 in shape:
                allocators[name] = output_allocator(self._engine.backend, self._stream, output.dtype)
                context.set_output_allocator(name, allocators[name])
            else:
                outputs[name] = self._stream.empty(shape, output.dtype)
                context.set_address(name, outputs[name])
        context.enqueue()
        if allocators:
            self._stream.synchronize()  # output shapes are known once the engine has run
            outputs |= {name: allocator.tensor() for name, allocator in allocators.items()}
        return _Launch(inputs, {name: outputs[name] for name in self.output_names})

    def _room(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for an input where TensorRT reads it."""
        if self._engine.inputs[name].is_on_host:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        return self._stream.empty(tensor.shape, tensor.dtype)

    def _copy(self, tensors: Tensors, inputs: Tensors) -> None:
        """Enqueue copies of `tensors` to `inputs`; inputs that TensorRT reads on the host are copied immediately."""
        for name, target in inputs.items():
            source = tensors[name]
            if self._engine.inputs[name].is_on_host:
                target.copy_(source)
            else:
                write(self._stream, target, source)

    def _replay(self, tensors: Tensors) -> Tensors:
        """Copy the inputs to the buffers of their shapes' graph, and replay it."""
        shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
        if shapes not in self._captured:
            self._captured[shapes] = self._capture(tensors)
            return self._captured[shapes].outputs
        captured = self._captured[shapes]
        if captured.graph is None:
            return self._launch(tensors).outputs
        self._copy(tensors, captured.inputs)
        captured.graph.replay()
        return captured.outputs

    def _capture(self, tensors: Tensors) -> _Launch:
        """Capture a run, after a first one in which TensorRT did its setup."""
        launch, context = self._launch(tensors), self._context(tensors)
        reads_host = any(tensor.is_on_host for tensor in self._engine.inputs.values())
        if reads_host or not context.is_capturable() or any(-1 in context.shape(name) for name in self.output_names):
            return launch
        return _Launch(launch.inputs, launch.outputs, self._stream.capture(context.enqueue))


def _shapes(tensors: Tensors) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def output_allocator(backend: Backend, stream: Stream, dtype: torch.dtype) -> Any:
    """Return an IOutputAllocator for one output; `tensor()` is the output once the stream is done."""
    base: Any = backend.trt.IOutputAllocator

    class OutputAllocator(base):  # type: ignore[misc]  # TensorRT's class is known when it is loaded
        def __init__(self) -> None:
            base.__init__(self)
            self._memory = stream.empty((0,), torch.uint8)
            self._shape: tuple[int, ...] = ()

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            """Allocate `size` bytes; called by versions without streams."""
            if size > self._memory.numel():
                self._memory = stream.empty((size,), torch.uint8)
            return self._memory.data_ptr()

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, _stream: int) -> int:
            """Allocate `size` bytes."""
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, _name: str, shape: Any) -> None:
            self._shape = tuple(shape)

        def tensor(self) -> torch.Tensor:
            size = math.prod(self._shape) * dtype.itemsize
            return self._memory[:size].view(dtype).view(self._shape)

    return OutputAllocator()
