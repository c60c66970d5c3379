"""`IExecutionContext`: reads and writes the addresses it is given, when its stream is waited for."""

from __future__ import annotations

import ctypes
import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from tests.simulated_tensorrt.aliases import fault_of_aliases, inputs_at_worst
from tests.simulated_tensorrt.gpu import SimulatedGpu
from trtkit.reference.ranks import GlooRank
from trtkit.runtime.device import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from tests.simulated_tensorrt.runtime import SimulatedEngine
    from tests.simulated_tensorrt.runtime_config import RuntimeConfig
    from trtkit.reference import Rank
    from trtkit.runtime.host_device import Watch

    Shape = tuple[int, ...]


SCRATCH = "device memory"
_FOREVER, _NEVER_S = timedelta(days=1), 1e5


class SimulatedError(Exception):
    """What would be a memory fault or wrong values on a GPU."""


@dataclass(frozen=True, eq=False)
class Launch:
    """One enqueue: the shapes and addresses it was given, which stay as they are.

    scratch: address and bytes of the device memory that the caller manages.
    """

    context: SimulatedContext
    shapes: Mapping[str, Shape]
    addresses: Mapping[str, int]
    scratch: tuple[int, int] = (0, 0)

    def __call__(self) -> None:
        """Compute."""
        self.context.compute(self)

    def writes(self) -> Iterator[tuple[str, int, int]]:
        """Yield each output's name and the addresses that it is written from and to."""
        for name in self.context.engine.outputs:
            if name in self.addresses:
                start = self.addresses[name]
                yield name, start, start + self.context.size_bytes(name, self.shapes[name])
        yield SCRATCH, self.scratch[0], sum(self.scratch)

    def touches(self) -> Iterator[tuple[str, int, int]]:
        """Yield the same of inputs and outputs."""
        yield SCRATCH, self.scratch[0], sum(self.scratch)
        for name, start in self.addresses.items():
            yield name, start, start + self.context.size_bytes(name, self.shapes[name])


class SimulatedContext:
    """A context on one profile. `True` is success; everything else is an error told, and `False`."""

    def __init__(self, engine: SimulatedEngine, config: RuntimeConfig) -> None:
        self.engine, self._config = engine, config
        size = 0 if config.is_user_managed else engine.device_memory_size_v2
        self._memory = engine.device.allocate((size,), torch.uint8)
        self._scratch = 0, 0
        self.error_recorder: Any = None
        self.profiler: Any = None
        self.profile = 0
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self.communicator: Rank | None = None
        self._outputs: dict[tuple[tuple[str, Shape], ...], dict[str, Shape]] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        """Choose a profile; shapes and addresses stay."""
        if self._is_capturing:
            return self._refuse("setOptimizationProfileAsync: a graph is captured")
        if not 0 <= profile < self.engine.num_optimization_profiles:
            return self._refuse(f"profile {profile} of {self.engine.num_optimization_profiles}")
        if stream not in self.engine.device.streams:
            return self._refuse(f"{stream} is not a stream")
        self.profile = profile
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        """Give it scratch memory; what is wrong with it is told, and nothing returned."""
        if not self._config.is_user_managed:
            self._refuse("setDeviceMemoryV2: the context has memory of its own")
        elif memory % ALIGNMENT:
            self._refuse(f"setDeviceMemoryV2: the memory is not aligned to {ALIGNMENT} bytes")
        else:
            self._scratch = memory, size

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        """Give an input its shape, within the profile."""
        if name not in self.engine.inputs:
            return self._refuse(f"there is no input `{name}`")
        if self._is_capturing:
            return self._refuse(f"setInputShape: `{name}` while a graph is captured: it may hold the enqueue alone")
        declared = self.engine.get_tensor_shape(name)
        if len(shape) != len(declared) or any(own not in (-1, size) for own, size in zip(declared, shape, strict=True)):
            return self._refuse(f"setInputShape: `{name}` has {list(declared)}, not {list(shape)}")
        if fault := self._outside(name, shape):
            return self._refuse(f"setInputShape: {fault}")
        self._shapes[name] = tuple(shape)
        return True

    @property
    def _is_capturing(self) -> bool:
        return self.engine.device.capturing is not None

    def _outside(self, name: str, shape: Shape) -> str:
        """Say what is wrong with an input's shape in the profile; empty if nothing is."""
        low, _, high = self.engine.get_tensor_profile_shape(name, self.profile)
        if all(least <= size <= most for least, size, most in zip(low, shape, high, strict=True)):
            return ""
        return f"`{name}` {list(shape)} is outside profile {self.profile}, {list(low)}..{list(high)}"

    def set_tensor_address(self, name: str, address: int) -> bool:
        """Give a tensor its memory."""
        if name not in self.engine.tensors:
            return self._refuse(f"there is no tensor `{name}`")
        if self._is_capturing:
            return self._refuse(f"setTensorAddress: `{name}` while a graph is captured: it may hold the enqueue alone")
        if address % ALIGNMENT and not self.engine.is_shape_inference_io(name):
            return self._refuse(f"setTensorAddress: the address of `{name}` is not aligned to {ALIGNMENT} bytes")
        self._addresses[name] = address
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        """Let an output be allocated when its size is known."""
        if name not in self.engine.outputs:
            return self._refuse(f"there is no output `{name}`")
        self._allocators[name] = allocator
        return True

    def set_communicator(self, communicator: object) -> bool:
        """Take the communicator of the ranks, once; wait for the others to do the same.

        Ranks that are processes wait with the interpreter's lock held, as TensorRT's binding does.
        """
        if self.communicator is not None:
            return self._refuse("setCommunicator: existing communicator must be null")
        if not self.engine.has_collectives:
            return self._refuse("setCommunicator: The engine is not a multi-device engine.")
        ranks = self.engine.device.communicators.get(_pointer(communicator))
        if ranks is None:
            return self._refuse("setCommunicator: not a capsule of a communicator")
        if ranks.count != self.engine.network.ranks:
            return self._refuse(f"setCommunicator: {ranks.count} ranks; the engine has {self.engine.network.ranks}")
        if isinstance(ranks, GlooRank):
            _meet_with_lock(ranks)
        else:
            ranks.exchange(f"communicator of context {self.engine.contexts.index(self)}", torch.zeros(1))
        self.communicator = ranks
        return True

    def get_tensor_shape(self, name: str) -> Shape:
        """Return a shape at the inputs' shapes; -1 where it follows from the data or from a shape that is missing."""
        if name in self.engine.inputs:
            return self._shapes.get(name, self.engine.get_tensor_shape(name))
        return self._output_shapes().get(name, self.engine.get_tensor_shape(name))

    def is_stream_capturable(self, stream: int) -> bool:
        """Whether nothing has to be allocated or read on the host while it runs."""
        shapes = self._output_shapes()
        reads_host = any(self.engine.is_shape_inference_io(name) for name in self.engine.inputs)
        is_static = all(-1 not in each for each in shapes.values())
        return stream in self.engine.device.streams and not reads_host and is_static and not self.engine.is_streaming

    def execute_async_v3(self, handle: int) -> bool:
        """Put a launch on a stream."""
        stream = self.engine.device.streams.get(handle)
        if stream is None:
            return self._refuse(f"enqueueV3: {handle} is not a stream")
        if fault := self._fault(handle):
            return self._refuse(f"enqueueV3: {fault}")
        launch = self._launch()
        self._compile()
        if self.profiler is not None or self._allocators or self.engine.is_streaming:  # then TensorRT itself waits
            stream.run(launch)
            stream.synchronize()
        else:
            stream.run(launch)
        return True

    def compute(self, launch: Launch) -> None:
        """Read the inputs, compute, and write the outputs."""
        if self._watch is not None:
            self._watch.launch("engine")
        with self._unwatched():
            self._compute(launch)

    @property
    def _watch(self) -> Watch | None:
        return getattr(self.engine.device, "watch", None)

    def _unwatched(self) -> AbstractContextManager[None]:
        return nullcontext() if self._watch is None else self._watch.paused()

    def _compute(self, launch: Launch) -> None:
        self._check_memory(launch)
        engine = self.engine
        if engine.ranks.count > 1 and self.communicator not in engine.device.communicators.values():
            raise SimulatedError("the communicator was given back before the context")
        engine.ranks.communicator = self.communicator
        executor = engine.executor({name: launch.shapes[name] for name in engine.inputs})
        inputs: Mapping[str, torch.Tensor] = {name: self._view(name, launch) for name in engine.inputs}
        if not isinstance(engine.device, SimulatedGpu):
            inputs = inputs_at_worst(launch, inputs, executor.run)
        layers = None if self.profiler is None else self._report_layer
        outputs = executor.run(inputs, on_layer=layers)
        for name in engine.outputs:
            if name in self._allocators:
                self._allocate(name, outputs[name], launch)
            elif engine.get_aliased_input_tensor(name) is None:
                self._view(name, launch).copy_(outputs[name])

    def size_bytes(self, name: str, shape: Shape) -> int:
        """Return how much memory a tensor takes."""
        return math.prod(shape) * self._dtype(name).itemsize

    def _refuse(self, text: str) -> bool:
        if self.error_recorder is not None:
            self.error_recorder.report_error(self.engine.trt.ErrorCodeTRT.INVALID_ARGUMENT, text)
            return False
        return self.engine.errors.refuse(text)

    def _fault(self, handle: int) -> str:
        """Say why nothing can be launched; empty if it can."""
        engine = self.engine
        if not engine.weights_loaded:
            return "the weights are deferred and not loaded"
        for name in engine.inputs:
            if -1 in self.get_tensor_shape(name):
                return f"the shape of input `{name}` is not set"
            if fault := self._outside(name, self.get_tensor_shape(name)):
                return fault
        for name in engine.tensors:
            is_empty_input = name in engine.inputs and 0 in self.get_tensor_shape(name)
            if not self._addresses.get(name) and name not in self._allocators and not is_empty_input:
                return f"the address of `{name}` is not set, which only an input of size 0 may lack"
            cache = engine.get_aliased_input_tensor(name)
            if cache is not None and self._addresses[name] != self._addresses[cache]:
                return f"`{name}` is written to the memory of `{cache}`, but has another address"
        return (
            self._fault_of_capture(handle)
            or self._fault_of_scratch()
            or self._fault_of_ranks()
            or fault_of_aliases(self._launch())
            or self._conflict(handle)
        )

    def _fault_of_capture(self, handle: int) -> str:
        """Say why a graph cannot hold the launch; empty if it can, or if none is captured."""
        if not self._is_capturing:
            return ""
        if not self.is_stream_capturable(handle):
            why = "it streams its weights" if self.engine.is_streaming else "its shapes follow from data"
            return f"the engine cannot be captured: {why}"
        if self._config.is_lazy:
            return "a graph would keep the fallback kernels that run until those of the shape are compiled (LAZY)"
        return ""

    def _fault_of_scratch(self) -> str:
        """Say what is wrong with the memory that the caller manages; empty if nothing is."""
        needed = self.engine.get_device_memory_size_for_profile_v2(self.profile)
        if self._config.is_user_managed and self._scratch[1] < needed:
            return f"profile {self.profile} needs {needed} bytes of device memory; {self._scratch[1]} are set"
        return ""

    def _fault_of_ranks(self) -> str:
        """Say why the engine's collectives cannot run; empty if they can, or if it has none."""
        count = self.engine.network.ranks
        if count > 1 and self.communicator is None:
            return f"the engine has collectives of {count} ranks and no communicator is set"
        is_captured = count > 1 and self.engine.device.capturing is not None
        return "collectives in a graph: a rank that does not capture hangs the others" if is_captured else ""

    def _conflict(self, handle: int) -> str:
        """Say which work of another stream, that nobody has waited for, uses the same memory or the same profile."""
        launch = self._launch()
        own, written = list(launch.touches()), list(launch.writes())
        for other, stream in self.engine.device.streams.items():
            for work in stream.pending if other != handle else ():
                if not isinstance(work, Launch):
                    continue
                if work.context.engine is self.engine and work.context.profile == self.profile:
                    return f"profile {self.profile} is in use by another context on stream {other}"
                for mine, theirs in ((own, work.writes()), (written, work.touches())):
                    if name := _overlap(mine, list(theirs)):
                        return f"`{name}` is in use on stream {other}, which stream {handle} has not waited for"
        return ""

    def _check_memory(self, launch: Launch) -> None:
        """Raise SimulatedError for memory that has been given back, or that is too small."""
        device = self.engine.device
        for name, start, end in launch.touches():
            if start == end and (name == SCRATCH or (name in self.engine.inputs and not start)):
                continue
            is_on_host = name != SCRATCH and self.engine.is_shape_inference_io(name)
            if name not in self._allocators and not is_on_host and not device.holds(start, end - start):
                raise SimulatedError(f"`{name}` needs {end - start} bytes at an address where there are fewer, or none")

    def _launch(self) -> Launch:
        return Launch(self, self._all_shapes(), dict(self._addresses), self._scratch)

    def _view(self, name: str, launch: Launch) -> torch.Tensor:
        """Return a tensor on the memory that a launch was given."""
        shape, dtype = launch.shapes[name], self._dtype(name)
        size = self.size_bytes(name, shape)
        if not size:
            return torch.empty(shape, dtype=dtype)
        device, address = self.engine.device, launch.addresses[name]
        if isinstance(device, SimulatedGpu) and not self.engine.is_shape_inference_io(name):
            return device.view(address, size).view(dtype).view(shape)
        memory = (ctypes.c_char * size).from_address(address)
        return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)

    def _allocate(self, name: str, value: torch.Tensor, launch: Launch) -> None:
        """Ask for memory for an output, and write it."""
        size = max(value.numel() * value.dtype.itemsize, 1)
        allocate = self._allocators[name].reallocate_output_async
        address = allocate(name, launch.addresses.get(name, 0), size, ALIGNMENT, 0)
        if not self.engine.device.holds(address, size):
            raise SimulatedError(f"the allocator of `{name}` gave less than {size} bytes")
        self._allocators[name].notify_shape(name, tuple(value.shape))
        self._view(name, Launch(self, {name: tuple(value.shape)}, {name: address})).copy_(value)

    def _report_layer(self, name: str, seconds: float) -> None:
        self.profiler.report_layer_time(name, seconds * 1e3)

    def _compile(self) -> None:
        """Compile kernels for these shapes, unless the cache has them: EAGER waits, LAZY does it in the background."""
        shapes = tuple(sorted(self._all_shapes().items()))
        kernel = f"{self.profile} {shapes}"
        cache = self._config.cache
        if cache is None or kernel not in cache.kernels:
            compiled = self.engine.compiled_later if self._config.is_lazy else self.engine.compiled
            compiled.append((self.profile, tuple(shape for _, shape in shapes)))
            if self._watch is not None and not self._config.is_lazy:
                self._watch.wait("kernels are compiled")
        if cache is not None:
            cache.kernels.add(kernel)

    def _dtype(self, name: str) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.engine.tensors[name].dtype.torch)
        return dtype

    def _all_shapes(self) -> dict[str, Shape]:
        return {name: self.get_tensor_shape(name) for name in self.engine.tensors}

    def _output_shapes(self) -> dict[str, Shape]:
        """Return the outputs' shapes at the inputs' shapes; none if one of these is missing."""
        given = {name: self.get_tensor_shape(name) for name in self.engine.inputs}
        key = tuple(given.items())
        if any(-1 in shape for shape in given.values()):
            return {}
        if key not in self._outputs:
            with self._unwatched():
                self._outputs[key] = self.engine.network.output_shapes(given)
        return self._outputs[key]


def _pointer(communicator: object) -> int:
    """Return what a capsule holds; 0 for anything else."""
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        return read(communicator, b"ncclComm_t") or 0
    except ValueError:
        return 0


def _overlap(ours: list[tuple[str, int, int]], theirs: list[tuple[str, int, int]]) -> str:
    """Return the name of the first of `ours` that shares memory with `theirs`; empty if none does."""
    for name, start, end in ours:
        if any(start < their_end and their_start < end for _, their_start, their_end in theirs):
            return name
    return ""


def _meet_with_lock(ranks: GlooRank) -> None:
    """Wait for the other ranks while no other thread of this process runs: none gets a turn, and waiting gives none."""
    parts = [torch.zeros(1) for _ in range(ranks.count)]
    work = ranks._group.allgather(parts, torch.zeros(1), _FOREVER)
    interval_s, wait = sys.getswitchinterval(), ctypes.PyDLL(None).usleep
    sys.setswitchinterval(_NEVER_S)
    try:
        while not work.is_completed():
            wait(1000)
    finally:
        sys.setswitchinterval(interval_s)
    work.wait()
