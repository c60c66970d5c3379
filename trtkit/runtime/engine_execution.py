"""Run a plan on the GPU that is here, with torch tensors as device buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trtkit.dtypes import from_tensorrt
from trtkit.errors import BackendError
from trtkit.reference import to_tensor
from trtkit.runtime.layer_profiler import layer_profiler

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.backends import Backend


Tensors = dict[str, torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class _Captured:
    """A CUDA graph with the buffers that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensors
    outputs: Tensors


class EngineExecution:
    """A deserialized engine with an execution context and a stream of its own.

    has_cuda_graphs: launches are captured at the first run of each shape and replayed; buffers are then kept.
    Raises BackendError where TensorRT does not load the plan on this GPU.
    """

    def __init__(self, backend: Backend, plan: Path, *, has_cuda_graphs: bool = False) -> None:
        self._backend, self._has_cuda_graphs = backend, has_cuda_graphs
        self._logger = backend.logger()
        self._runtime = backend.trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        if self._engine is None:
            fix = "build it for this GPU (`--target`), with the TensorRT that is installed here"
            raise BackendError(f"{backend.name} {backend.version} does not load the plan here", str(plan), fix)
        self._context = self._engine.create_execution_context()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._captured: dict[Shapes, _Captured] = {}
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        inputs = backend.trt.TensorIOMode.INPUT
        self.input_names = tuple(name for name in names if self._engine.get_tensor_mode(name) == inputs)
        self.output_names = tuple(name for name in names if name not in self.input_names)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the outputs, on the GPU, for arrays or tensors by input name.

        With CUDA graphs they are valid until the next run of the same shapes.
        """
        with torch.cuda.stream(self._stream):
            tensors = {name: to_tensor(inputs[name], name) for name in self.input_names}
            outputs = self._replay(tensors) if self._has_cuda_graphs else self._launch(self._on_device(tensors))
        self._stream.synchronize()
        return outputs

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return how long each of the engine's layers took, in the order they ran."""
        profiler = layer_profiler(self._backend)
        self._context.profiler = profiler
        try:
            with torch.cuda.stream(self._stream):
                self._launch(self._on_device({name: to_tensor(inputs[name], name) for name in self.input_names}))
            self._stream.synchronize()
        finally:
            self._context.profiler = None
        return dict(profiler.seconds)

    def _on_device(self, tensors: Mapping[str, torch.Tensor]) -> Tensors:
        return {name: tensor.cuda().contiguous() for name, tensor in tensors.items()}

    def _launch(self, held: Tensors) -> Tensors:
        """Put the engine's work on the stream; return its outputs. held: inputs on the GPU."""
        for name, tensor in held.items():
            self._context.set_input_shape(name, tuple(tensor.shape))
            self._context.set_tensor_address(name, tensor.data_ptr())
        outputs = {name: self._allocate(name) for name in self.output_names}
        for name, tensor in outputs.items():
            self._context.set_tensor_address(name, tensor.data_ptr())
        self._enqueue()
        return outputs

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._stream.cuda_stream):
            raise BackendError("TensorRT could not run the engine", fix="its log says why")

    def _replay(self, tensors: Tensors) -> Tensors:
        """Copy the inputs to where the graph of their shapes reads them, and replay it."""
        shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
        if shapes not in self._captured:
            self._captured[shapes] = self._capture(tensors)
        captured = self._captured[shapes]
        for name, tensor in tensors.items():
            captured.inputs[name].copy_(tensor, non_blocking=True)
        captured.graph.replay()
        return captured.outputs

    def _capture(self, tensors: Tensors) -> _Captured:
        """Capture a run; what TensorRT sets up at its first one is not to be captured."""
        inputs = self._on_device(tensors)
        outputs = self._launch(inputs)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._enqueue()
        return _Captured(graph, inputs, outputs)

    def _allocate(self, name: str) -> torch.Tensor:
        """Return an empty tensor for output `name` at the context's shapes."""
        dtype = from_tensorrt(self._engine.get_tensor_dtype(name).name)
        return torch.empty(
            tuple(self._context.get_tensor_shape(name)), dtype=getattr(torch, dtype.torch), device="cuda"
        )
