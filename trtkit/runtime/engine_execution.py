"""Run a plan as a function of tensors on a device, with outputs whose sizes are known only afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trtkit.reference import to_tensor
from trtkit.runtime.loaded_engine import LoadedEngine

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.runtime.device import CapturedGraph, Stream


Tensors = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class _Launch:
    """Memory that a launch reads and writes, and its CUDA graph where there is one."""

    inputs: Tensors
    outputs: Tensors
    graph: CapturedGraph | None = None


class EngineExecution:
    """A StageExecution on TensorRT. Its work is put on `stream`, which the caller waits for.

    has_cuda_graphs: launches are captured at the first run of each shape and replayed; buffers are then kept. An engine
    whose shapes follow from its data, or from values it reads on the host, is launched each time.
    cache: where kernels compiled for this GPU are kept.
    Raises BackendError if TensorRT does not load the plan on this GPU.
    """

    def __init__(
        self, backend: Backend, plan: Path, stream: Stream, cache: Path | None = None, *, has_cuda_graphs: bool = False
    ) -> None:
        self._engine = LoadedEngine(backend, plan, stream, cache, is_captured=has_cuda_graphs)
        self._stream, self._has_cuda_graphs = stream, has_cuda_graphs
        self._captured: dict[tuple[tuple[int, ...], ...], _Launch] = {}
        self.input_names, self.output_names = tuple(self._engine.inputs), tuple(self._engine.outputs)

    def run(self, inputs: Mapping[str, Any]) -> Tensors:
        """Return the outputs, on the device, for arrays or tensors by input name, as the stream will have them.

        With CUDA graphs they are valid until the next run of the same shapes.
        """
        tensors = {name: to_tensor(inputs[name], name) for name in self.input_names}
        self._stream.wait_for_current()
        return self._replay(tensors) if self._has_cuda_graphs else self._launch(tensors).outputs

    @property
    def streamable_bytes(self) -> int:
        """Weights that may stay in host memory."""
        return self._engine.streamable_bytes

    def stream_weights(self, budget_bytes: int) -> None:
        """Keep so many bytes of the weights on the GPU; see LoadedEngine. Launches are then not captured."""
        self._engine.stream_weights(budget_bytes)
        self._has_cuda_graphs = self._has_cuda_graphs and not self._engine.is_streaming

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return how long each of the engine's layers took, in the order they ran."""
        tensors = {name: to_tensor(inputs[name], name) for name in self.input_names}
        context = self._engine.context_for(_shapes(tensors))
        return context.layer_seconds(lambda: self._launch(tensors))

    def _launch(self, tensors: Tensors) -> _Launch:
        """Put copies of the inputs and the engine's work on the stream."""
        context = self._engine.context_for(_shapes(tensors))
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
            self._stream.synchronize()  # their shapes are known when the engine has run
            outputs |= {name: allocator.tensor() for name, allocator in allocators.items()}
        return _Launch(inputs, {name: outputs[name] for name in self.output_names})

    def _room(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for an input, where TensorRT reads it."""
        if self._engine.inputs[name].is_on_host:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        return self._stream.empty(tensor.shape, tensor.dtype)

    def _copy(self, tensors: Tensors, inputs: Tensors) -> None:
        """Put copies of `tensors` to `inputs` on the stream; what TensorRT reads on the host is copied now."""
        for name, target in inputs.items():
            source = tensors[name]
            if self._engine.inputs[name].is_on_host:
                target.copy_(source)
            else:
                self._stream.run(partial(target.copy_, source, non_blocking=True))

    def _replay(self, tensors: Tensors) -> Tensors:
        """Copy the inputs to where the graph of their shapes reads them, and replay it."""
        shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
        if shapes not in self._captured:
            self._captured[shapes] = self._capture(tensors)
        captured = self._captured[shapes]
        if captured.graph is None:
            return self._launch(tensors).outputs
        self._copy(tensors, captured.inputs)
        captured.graph.replay()
        return captured.outputs

    def _capture(self, tensors: Tensors) -> _Launch:
        """Capture a run; what TensorRT sets up at its first one is not to be captured."""
        launch, context = self._launch(tensors), self._engine.context_for(_shapes(tensors))
        self._stream.synchronize()
        reads_host = any(tensor.is_on_host for tensor in self._engine.inputs.values())
        if reads_host or not context.is_capturable() or any(-1 in context.shape(name) for name in self.output_names):
            return launch
        return _Launch(launch.inputs, launch.outputs, self._stream.capture(context.enqueue))


def _shapes(tensors: Tensors) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def output_allocator(backend: Backend, stream: Stream, dtype: torch.dtype) -> Any:
    """Return an IOutputAllocator for one output; `tensor()` is the output once the stream has been waited for."""
    base: Any = backend.trt.IOutputAllocator

    class OutputAllocator(base):  # type: ignore[misc]  # TensorRT's class is known when it is loaded
        def __init__(self) -> None:
            base.__init__(self)
            self._memory = stream.empty((0,), torch.uint8)
            self._shape: tuple[int, ...] = ()

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            """Make room for `size` bytes; called by versions without streams."""
            if size > self._memory.numel():
                self._memory = stream.empty((size,), torch.uint8)
            return self._memory.data_ptr()

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, _stream: int) -> int:
            """Make room for `size` bytes."""
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, _name: str, shape: Any) -> None:
            """Note the output's shape."""
            self._shape = tuple(shape)

        def tensor(self) -> torch.Tensor:
            """Return the output."""
            size = math.prod(self._shape) * dtype.itemsize
            return self._memory[:size].view(dtype).view(self._shape)

    return OutputAllocator()
