"""Run a plan on the GPU that is here, with torch tensors as device buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trtkit.dtypes import from_tensorrt
from trtkit.errors import BackendError
from trtkit.reference import to_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.backends import Backend


class EngineExecution:
    """A deserialized engine with an execution context and a stream of its own.

    Raises BackendError where TensorRT does not load the plan on this GPU.
    """

    def __init__(self, backend: Backend, plan: Path) -> None:
        self._backend = backend
        self._logger = backend.logger()
        self._runtime = backend.trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        if self._engine is None:
            fix = "build it for this GPU (`--target`), with the TensorRT that is installed here"
            raise BackendError(f"{backend.name} {backend.version} does not load the plan here", str(plan), fix)
        self._context = self._engine.create_execution_context()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        inputs = backend.trt.TensorIOMode.INPUT
        self.input_names = tuple(name for name in names if self._engine.get_tensor_mode(name) == inputs)
        self.output_names = tuple(name for name in names if name not in self.input_names)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the outputs, on the GPU, for arrays or tensors by input name."""
        with torch.cuda.stream(self._stream):
            held = {name: to_tensor(inputs[name], name).cuda().contiguous() for name in self.input_names}
            for name, tensor in held.items():
                self._context.set_input_shape(name, tuple(tensor.shape))
                self._context.set_tensor_address(name, tensor.data_ptr())
            outputs = {name: self._allocate(name) for name in self.output_names}
            for name, tensor in outputs.items():
                self._context.set_tensor_address(name, tensor.data_ptr())
            if not self._context.execute_async_v3(self._stream.cuda_stream):
                raise BackendError("TensorRT could not run the engine", fix="its log says why")
        self._stream.synchronize()
        return outputs

    def _allocate(self, name: str) -> torch.Tensor:
        """Return an empty tensor for output `name` at the context's shapes."""
        dtype = from_tensorrt(self._engine.get_tensor_dtype(name).name)
        return torch.empty(
            tuple(self._context.get_tensor_shape(name)), dtype=getattr(torch, dtype.torch), device="cuda"
        )
