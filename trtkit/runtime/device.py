"""Where an engine's memory and work live: on a GPU, or in host memory that keeps a GPU's rules.

Code that drives engines takes a `Device` and never asks torch for CUDA. The host's streams run their work as late as
a GPU may: when somebody waits for it. So a missing wait gives wrong values in a test, too.
"""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from trtkit.errors import ExecutionError, RankError
from trtkit.runtime.communicator import HostCommunicator, NcclCommunicator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.arrays import Array
    from trtkit.reference import Rank
    from trtkit.runtime.communicator import Communicator

ALIGNMENT = 256
"""What TensorRT asks of every address, in bytes. Source: `IExecutionContext::setTensorAddress`, NvInferRuntime.h."""


class Graph(Protocol):
    """Work that was captured once, with the addresses it had."""

    def replay(self) -> None:
        """Put the work on the stream that it was captured from."""
        ...


class Stream(Protocol):
    """Work in order. handle: what TensorRT takes for it. The caller's own stream is torch's current one."""

    @property
    def handle(self) -> int:
        """The `cudaStream_t`."""
        ...

    def run(self, work: Callable[[], object]) -> None:
        """Put what `work` launches on the stream."""
        ...

    def wait_for_current(self) -> None:
        """Let what is put here next wait for the current stream's work so far."""
        ...

    def hold_current(self) -> None:
        """Let what the current stream gets next wait for this stream's work so far."""
        ...

    def synchronize(self) -> None:
        """Wait until all work is done."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return aligned memory for work on this stream, with nothing of meaning in it."""
        ...

    def capture(self, work: Callable[[], object]) -> Graph:
        """Return what `work` launches as a graph, without running it. Nothing may be allocated or waited for in it."""
        ...


class Device(Protocol):
    """Memory that engines work on, memory_bytes of it. name: for people."""

    name: str
    memory_bytes: int

    def stream(self) -> Stream:
        """Return a new stream."""
        ...

    def connect(self, ranks: Rank) -> Communicator:
        """Return what connects it with the devices of the other ranks, all of which call this at once."""
        ...


def find_device(index: int | None = None) -> Device | None:
    """Return the GPU that engines run on here: number `index`, or the current one. None if there is none.

    Raises RankError for a rank that has no GPU on a machine that has some.
    """
    if not torch.cuda.is_available():
        return None
    if index is not None:
        count = torch.cuda.device_count()
        if index >= count:
            fix = "use a machine with a GPU for each rank, several machines by torchrun, or `--runtime reference`"
            raise RankError(f"the rank needs GPU {index}; this machine has {count}", "ranks", fix)
        use_device(index)
    return CudaDevice()


def to_device(array: Array, device: torch.device) -> torch.Tensor:
    """Return an array, which must not change until it is copied, as a tensor on `device`; nothing is waited for."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def start_copy(tensor: torch.Tensor) -> Callable[[], Array]:
    """Start to copy a tensor to the host; return what waits for it and returns it."""
    if tensor.device.type == "cpu":
        return tensor.numpy
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()

    def arrived() -> Array:
        event.synchronize()
        return host.numpy()

    return arrived


def use_device(index: int) -> None:
    """Let this process run engines on GPU `index`."""
    torch.cuda.set_device(index)


class CudaDevice:
    """The current NVIDIA GPU."""

    def __init__(self) -> None:
        self.name: str = torch.cuda.get_device_name()
        self.memory_bytes: int = torch.cuda.mem_get_info()[1]

    def stream(self) -> Stream:
        """Return a new stream."""
        return CudaStream()

    def connect(self, ranks: Rank) -> Communicator:
        """Return a communicator of NCCL's."""
        return NcclCommunicator(ranks)


class CudaStream:
    """A stream of torch's."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    @property
    def handle(self) -> int:
        """The `cudaStream_t`."""
        return int(self._stream.cuda_stream)

    def run(self, work: Callable[[], object]) -> None:
        """Put what `work` launches on the stream."""
        with torch.cuda.stream(self._stream):
            work()

    def wait_for_current(self) -> None:
        """Let what is put here next wait for the current stream's work so far."""
        self._stream.wait_stream(torch.cuda.current_stream())

    def hold_current(self) -> None:
        """Let what the current stream gets next wait for this stream's work so far."""
        torch.cuda.current_stream().wait_stream(self._stream)

    def synchronize(self) -> None:
        """Wait until all work is done."""
        self._stream.synchronize()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of this stream's pool; torch's allocator aligns to 512 bytes."""
        with torch.cuda.stream(self._stream):
            return torch.empty(tuple(shape), dtype=dtype, device="cuda")

    def capture(self, work: Callable[[], object]) -> CudaGraph:
        """Return what `work` launches as a graph, without running it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            work()
        return CudaGraph(self, graph)


@dataclass(frozen=True, eq=False)
class CudaGraph:
    """A graph of torch's, which would otherwise be replayed on the current stream."""

    stream: CudaStream
    graph: torch.cuda.CUDAGraph

    def replay(self) -> None:
        """Put the work on the stream."""
        self.stream.run(self.graph.replay)


class HostDevice:
    """Host memory with a GPU's rules: aligned, filled with NaN until written, work that waits until it is waited for.

    streams: by handle, as TensorRT names them. communicators: the ranks that a communicator's pointer stands for.
    """

    def __init__(self) -> None:
        self.name = "host memory"
        self.memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.streams: dict[int, HostStream] = {}
        self.communicators: dict[int, Rank] = {}
        self.capturing: HostGraph | None = None
        self._sizes: dict[int, int] = {}

    def stream(self) -> HostStream:
        """Return a new stream."""
        stream = HostStream(self, len(self.streams) + 1)
        self.streams[stream.handle] = stream
        return stream

    def connect(self, ranks: Rank) -> HostCommunicator:
        """Return a communicator that stands for the ranks themselves."""
        return HostCommunicator(self.communicators, ranks)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return aligned memory whose bytes are 255: NaN, or an integer that is nobody's token. Not in a capture."""
        self.check_not_capturing("memory is allocated")
        size = math.prod(shape) * dtype.itemsize
        block = np.full(size + ALIGNMENT, 0xFF, np.uint8)
        offset = -block.ctypes.data % ALIGNMENT
        address = block.ctypes.data + offset
        self._sizes[address] = size
        weakref.finalize(block, self._sizes.pop, address, None)
        return torch.from_numpy(block)[offset : offset + size].view(dtype).view(tuple(shape))

    def holds(self, address: int, size_bytes: int) -> bool:
        """Whether memory that somebody still owns is at `address`, and as much as that."""
        return any(start <= address and address + size_bytes <= start + size for start, size in self._sizes.items())

    def check_not_capturing(self, what: str) -> None:
        """Raise ExecutionError during a capture, as CUDA does (cudaErrorStreamCaptureUnsupported)."""
        if self.capturing is not None:
            raise ExecutionError(f"{what} while a graph is captured", "CUDA graph", "do it before the capture")


@dataclass(frozen=True, eq=False)
class HostGraph:
    """Calls that were recorded."""

    stream: HostStream
    calls: list[Callable[[], object]] = field(default_factory=list)

    def replay(self) -> None:
        """Keep the calls until somebody waits."""
        for call in self.calls:
            self.stream.run(call)


class HostStream:
    """Calls that wait. pending: those that nobody has waited for yet, in order."""

    def __init__(self, device: HostDevice, handle: int) -> None:
        self.handle = handle
        self._device = device
        self.pending: list[Callable[[], object]] = []

    def run(self, work: Callable[[], object]) -> None:
        """Keep `work` until somebody waits, or record it in the graph that is captured."""
        calls = self.pending if self._device.capturing is None else self._device.capturing.calls
        calls.append(work)

    def wait_for_current(self) -> None:
        """Do nothing: the current stream's work is done when it is called."""

    def hold_current(self) -> None:
        """Do all work now, so that what is called next finds it done."""
        self.synchronize()

    def synchronize(self) -> None:
        """Do all work."""
        self._device.check_not_capturing("a stream is waited for")
        pending, self.pending = self.pending, []
        for work in pending:
            work()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return aligned memory."""
        return self._device.allocate(shape, dtype)

    def capture(self, work: Callable[[], object]) -> HostGraph:
        """Return the calls that `work` makes to streams."""
        self._device.check_not_capturing("another graph is captured")
        self._device.capturing = graph = HostGraph(self)
        try:
            work()
        finally:
            self._device.capturing = None
        return graph
