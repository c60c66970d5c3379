"""An engine, driven by TensorRT's own calls, with memory for its input and output: for testing the contract."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tests.gpu.models import classifier_config
from tests.gpu.networks import build_plan
from trtkit.dtypes import FP32, INT64
from trtkit.network.graph import Graph
from trtkit.network.trt_errors import error_recorder

if TYPE_CHECKING:
    from tests.gpu.place import Place
    from trtkit.runtime.device import Stream

SHAPE, OUTPUT = (2, 3, 16, 16), (2, 5)
_CYCLES = 400_000_000
"""GPU cycles of a delay: about 0.2 s, in which the host makes its calls."""


@dataclass(eq=False)
class Opened:
    """An engine with one input and one output, a context and a stream."""

    place: Place
    plan: bytes
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        trt = self.place.backend.trt
        self.logger = self.place.backend.logger("ERROR")
        self.runtime = trt.Runtime(self.logger)
        self.runtime.error_recorder = self.errors = error_recorder(self.place.backend)
        self.engine = self.runtime.deserialize_cuda_engine(self.plan)
        if self.engine is None:
            raise RuntimeError(f"the plan does not load: {self.errors.texts}")
        names = [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]
        self.input, self.output = names[0], names[-1]
        self.stream: Stream = self.place.device.stream()
        self.kept: list[torch.Tensor] = []
        self.context = self.new_context()
        self.image = self.stream.empty(self.shape, torch.float32)
        self.scores = self.stream.empty(OUTPUT, torch.float32)

    @classmethod
    def classifier(cls, place: Place) -> Opened:
        """Open a classifier for batches of 1 to 4, and of 5 to 8 in a second profile."""
        bundle = place.bundle("classifier-fp32", lambda: classifier_config(place.scratch))
        return cls(place, bundle.engine_path().read_bytes(), SHAPE)

    @classmethod
    def sized_by_input(cls, place: Place) -> Opened:
        """Open a network whose second input states its output's shape."""
        graph = Graph(place.backend)
        x, shape = graph.input("x", FP32, (8,)), graph.input("shape", INT64, (2,))
        layer = graph.network.add_shuffle(x.trt)
        layer.set_input(1, shape.trt)
        graph.output(graph.add(layer, "reshape"), "y")
        return cls(place, build_plan(place, graph, {"shape": ((1, 1), (2, 4), (8, 8))}).read_bytes(), (8,))

    def new_context(self, config: Any = None) -> Any:
        """Return another context, whose errors are recorded."""
        context, scratch = user_managed(self.place, self.engine, self.stream, config)
        self.kept.append(scratch)
        context.error_recorder = self.errors
        return context

    def set_addresses(self) -> None:
        """Bind the memory of input and output."""
        self.context.set_tensor_address(self.input, self.image.data_ptr())
        self.context.set_tensor_address(self.output, self.scores.data_ptr())

    def ready(self) -> Opened:
        """Set shape and addresses; return self."""
        self.context.set_input_shape(self.input, self.shape)
        self.set_addresses()
        return self

    def launch(self) -> bool:
        """Enqueue the engine on the stream; return TensorRT's result."""
        return bool(self.context.execute_async_v3(self.stream.handle))

    def compute(self, image: torch.Tensor) -> torch.Tensor:
        """Return the output for an image."""
        self.image.copy_(image)
        self.place.synchronize()
        if not self.launch():
            raise RuntimeError(f"the launch was refused: {self.errors.texts}")
        self.finish()
        return self.scores.cpu().clone()

    def hold_back(self) -> None:
        """Keep the stream busy, so that work enqueued next does not run yet."""
        if self.place.has_gpu:  # streams on the host wait anyway
            self.stream.run(partial(torch.cuda._sleep, _CYCLES))

    def finish(self) -> None:
        """Wait for all work on the stream."""
        self.place.synchronize(self.stream)

    def is_idle(self) -> bool:
        """Whether the stream has no work left."""
        if not self.place.has_gpu:
            return not self.stream.pending  # type: ignore[attr-defined]
        return bool(torch.cuda.ExternalStream(self.stream.handle).query())


def user_managed(place: Place, engine: Any, stream: Stream, config: Any = None) -> tuple[Any, torch.Tensor]:
    """Return a new context and its scratch memory, which must outlive it: TensorRT-RTX supports no other kind."""
    config = config or engine.create_runtime_config()
    strategies = place.backend.trt.DynamicShapesKernelSpecializationStrategy
    config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER  # required for capture in a CUDA graph
    config.set_execution_context_allocation_strategy(place.backend.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    context, scratch = (
        engine.create_execution_context(config),
        stream.empty((engine.device_memory_size_v2,), torch.uint8),
    )
    context.set_device_memory(scratch.data_ptr(), scratch.nbytes)
    return context, scratch
