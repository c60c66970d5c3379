"""Devices that hold engines' memory and run their work: a GPU, or host memory with a GPU's rules (`host_device.py`).

Code that drives engines takes a `Device` and never calls torch.cuda itself.
"""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

import torch

from trtkit.backends import driver_version, list_gpus, load_backend, runs_on, same_version, supported_gpus
from trtkit.errors import BackendError, RankError
from trtkit.runtime.communicator import NcclCommunicator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.cuda.graphs import _POOL_HANDLE  # type: ignore[attr-defined]

    from trtkit.arrays import Array
    from trtkit.bundle.manifest import Manifest
    from trtkit.reference import Rank
    from trtkit.runtime.communicator import Communicator

_LOG = logging.getLogger("trtkit.device")

ALIGNMENT = 256
"""Alignment of every address given to TensorRT, in bytes.

Source: `IExecutionContext::setTensorAddress`, NvInferRuntime.h.
"""


class CapturedGraph(Protocol):
    """Captured work, with the addresses it had at capture."""

    def replay(self) -> None:
        """Enqueue the work on the stream that it was captured from."""
        ...


class Event(Protocol):
    """A point in a stream's work."""

    def is_past(self) -> bool:
        """Whether all work up to the point is done; does not wait."""
        ...

    def seconds_after(self, earlier: Event) -> float | None:
        """Return the seconds since an earlier point if both are past; None if the device does not measure time."""
        ...


class Stream(Protocol):
    """Work in order. handle: the stream as TensorRT takes it. The caller's own stream is torch's current one."""

    @property
    def handle(self) -> int:
        """The `cudaStream_t`."""
        ...

    def run(self, work: Callable[[], object]) -> None:
        """Enqueue what `work` launches."""
        ...

    def wait_for_current(self) -> None:
        """Make work enqueued here wait for the current stream's work so far."""
        ...

    def hold_current(self) -> None:
        """Make work enqueued on the current stream wait for this stream's work so far."""
        ...

    def synchronize(self) -> None:
        """Wait until all work is done."""
        ...

    def record(self) -> Event:
        """Return the point after the work so far."""
        ...

    def wait(self, event: Event) -> None:
        """Make work enqueued here wait for a point of another stream; the caller does not wait."""
        ...

    def sibling(self) -> Stream:
        """Return another stream of the same device."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return aligned, uninitialized memory for work on this stream."""
        ...

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Return host memory [size_bytes] uint8 whose copies run while the caller goes on (pinned on a GPU)."""
        ...

    def capture(self, work: Callable[[], object]) -> CapturedGraph | None:
        """Return what `work` launches as a graph, without running it. `work` must neither allocate nor wait.

        Returns None if the capture fails, for example because of another thread's work.
        """
        ...


class Device(Protocol):
    """A device with memory_bytes of memory. name: for messages.

    compute_capability: 10 * major + minor; None if it is not a GPU. environment: what compiled kernels depend on: the
    GPU and its driver.
    """

    name: str
    memory_bytes: int
    compute_capability: int | None
    environment: str

    @property
    def free_bytes(self) -> int:
        """Free memory, after this and other processes' allocations."""
        ...

    def stream(self) -> Stream:
        """Return a new stream."""
        ...

    def connect(self, ranks: Rank) -> Communicator:
        """Return a communicator with the devices of the other ranks, all of which must call this at the same time."""
        ...


def find_device(index: int | None = None) -> Device | None:
    """Return the GPU that engines run on: number `index`, or the current one. None if there is no GPU.

    Raises RankError if a rank has no GPU on a machine that has some.
    """
    if not torch.cuda.is_available():
        _warn_of_torch()
        return None
    if index is not None:
        count = torch.cuda.device_count()
        if index >= count:
            fix = "use a machine with a GPU for each rank, several machines by torchrun, or `--runtime reference`"
            raise RankError(f"the rank needs GPU {index}; this machine has {count}", "ranks", fix)
        use_device(index)
    return CudaDevice()


@cache
def _warn_of_torch() -> None:
    """Warn once if there is a GPU that torch, through which engines run, cannot use."""
    if gpus := list_gpus():
        why = "was built without CUDA" if torch.version.cuda is None else "finds no CUDA driver"
        fix = "install a build of torch for CUDA" if torch.version.cuda is None else "update the GPU's driver"
        _LOG.warning("networks run on the CPU, not on the GPU (%s): torch %s; fix: %s", gpus[0].name, why, fix)


def find_device_for(backend: str) -> Device | None:
    """Return the current GPU if a TensorRT library's engines run on it; None otherwise."""
    device = find_device()
    return None if device is None or not _is_supported(device, backend) else device


def check_device(device: Device, manifest: Manifest) -> None:
    """Raise BackendError if a bundle's engines do not run on a device, before their plans, often large, are read.

    A plan works with one version of TensorRT. Source: TensorRT-RTX docs on engines built on a CPU; NvInfer.h on
    `kVERSION_COMPATIBLE`, which trtkit does not set.
    """
    built_with, installed = manifest.backend.version, load_backend(manifest.backend.name).version
    if not same_version(built_with, installed):
        what = f"the engine was built with {manifest.backend.name} {built_with}; {installed} is installed"
        fix = f"build it again, or install version {built_with}"
        raise BackendError(what, "TensorRT", fix)
    backend, targets = manifest.backend.name, manifest.target.compute_capabilities
    if not _is_supported(device, backend):
        what = f"`{backend}` runs on GPUs of compute capability {supported_gpus(backend)}"
        fix = "use `--runtime reference`, or build with full TensorRT on this GPU: `--target local-gpu`"
    elif targets and device.compute_capability not in (None, *targets):
        what = f"the engine was built for compute capability {', '.join(f'{target / 10:.1f}' for target in targets)}"
        fix = "build it with this GPU's `--target`, or use `--runtime reference`"
    else:
        return
    raise BackendError(f"{what}; {device.name} has {(device.compute_capability or 0) / 10:.1f}", "GPU", fix)


def _is_supported(device: Device, backend: str) -> bool:
    return device.compute_capability is None or runs_on(backend, device.compute_capability)


def release_memory() -> None:
    """Return unused memory to the GPU's driver."""
    gc.collect()  # captured graphs are in reference cycles
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()  # pinned memory for staging copies


def is_host(device: torch.device) -> bool:
    """Whether a device's tensors are in host memory."""
    return device.type == "cpu"


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in host memory."""
    return tensor.device.type == "cpu"


def staged(values: Array | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return values in memory from which `device` copies without making the host wait.

    A copy from pageable memory waits for the stream's work so far. Source: CUDA API synchronization behavior, CUDA
    Toolkit documentation. torch keeps a pinned block until its copies are done.
    """
    tensor = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
    return tensor if is_host(device) else tensor.pin_memory()


def host_buffer(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Return host memory [size_bytes] uint8 to which `device` copies without making the host wait; torch reuses it."""
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=not is_host(device))


def to_device(values: Array | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return host values as a tensor on `device`, without waiting."""
    return staged(values, device).to(device, non_blocking=True)


def write(stream: Stream, target: torch.Tensor, values: Array | torch.Tensor) -> None:
    """Enqueue a copy of values to the memory `target` of the same size, without waiting."""
    source = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
    if is_on_host(source):
        source = staged(source, target.device)
    stream.run(partial(target.view(-1).copy_, source.reshape(-1), non_blocking=True))


def start_copy(tensor: torch.Tensor) -> Callable[[], Array]:
    """Start copying a tensor's current values to the host; return a function that waits for them and returns them."""
    if is_host(tensor.device):
        return tensor.clone().numpy
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()

    def arrived() -> Array:
        event.synchronize()
        return host.numpy()

    return arrived


def use_device(index: int) -> None:
    """Make this process run engines on GPU `index`."""
    torch.cuda.set_device(index)


class CudaDevice:
    """The current NVIDIA GPU."""

    def __init__(self) -> None:
        self.name: str = torch.cuda.get_device_name()
        self.memory_bytes: int = torch.cuda.mem_get_info()[1]
        major, minor = torch.cuda.get_device_capability()
        self.compute_capability: int | None = 10 * major + minor
        driver = driver_version() or f"CUDA {torch.version.cuda}"
        self.environment = f"{self.name} {major}.{minor} {driver}"

    @property
    def free_bytes(self) -> int:
        """Free memory by the driver; memory that torch caches counts as used (see `release_memory`)."""
        return int(torch.cuda.mem_get_info()[0])

    def stream(self) -> Stream:
        """Return a new stream."""
        return CudaStream()

    def connect(self, ranks: Rank) -> Communicator:
        """Return an NCCL communicator."""
        return NcclCommunicator(ranks)


@dataclass(frozen=True, eq=False)
class CudaEvent:
    """An event of torch's."""

    event: torch.cuda.Event

    def is_past(self) -> bool:
        """Whether all work up to the point is done."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def seconds_after(self, earlier: Event) -> float | None:
        """Return the seconds since an earlier point."""
        assert isinstance(earlier, CudaEvent)
        return float(earlier.event.elapsed_time(self.event)) / 1e3


class CudaStream:
    """A stream of torch's."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool: _POOL_HANDLE | None = None  # shared by all graphs

    @property
    def handle(self) -> int:
        """The `cudaStream_t`."""
        return int(self._stream.cuda_stream)

    def run(self, work: Callable[[], object]) -> None:
        """Enqueue what `work` launches."""
        with torch.cuda.stream(self._stream):
            work()

    def wait_for_current(self) -> None:
        """Make work enqueued here wait for the current stream's work so far."""
        self._stream.wait_stream(torch.cuda.current_stream())

    def hold_current(self) -> None:
        """Make work enqueued on the current stream wait for this stream's work so far."""
        torch.cuda.current_stream().wait_stream(self._stream)

    def synchronize(self) -> None:
        """Wait until all work is done."""
        self._stream.synchronize()

    def record(self) -> Event:
        """Return the point after the work so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return CudaEvent(self._stream.record_event(event))

    def wait(self, event: Event) -> None:
        """Make work enqueued here wait for a point of another stream."""
        assert isinstance(event, CudaEvent)
        self._stream.wait_event(event.event)

    def sibling(self) -> CudaStream:
        """Return another stream of the same device."""
        return CudaStream()

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Return pinned memory of exactly that size; torch's allocator would round up to a power of two and keep it.

        Raises BackendError if the system cannot pin as much.
        """
        memory = torch.empty(size_bytes, dtype=torch.uint8)
        runtime, address = torch.cuda.cudart(), memory.data_ptr()  # type: ignore[no-untyped-call]
        code = int(runtime.cudaHostRegister(address, size_bytes, 0)) if size_bytes else 0
        if code:
            fix = "lower `--host-cache-gib`, or raise the limit of locked memory (`ulimit -l`)"
            raise BackendError(f"CUDA refused to pin {size_bytes} bytes of host memory: error {code}", "GPU", fix)
        if size_bytes:
            weakref.finalize(memory.untyped_storage(), runtime.cudaHostUnregister, address)
        return memory

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of this stream's pool, which torch's allocator aligns to 512 bytes."""
        with torch.cuda.stream(self._stream):
            return torch.empty(tuple(shape), dtype=dtype, device="cuda")

    def capture(self, work: Callable[[], object]) -> CudaGraph | None:
        """Return what `work` launches as a graph, without running it; None if the capture fails.

        Unlike `torch.cuda.graph`, this keeps cached memory, and calls of other threads do not end the capture. Graphs
        of a stream share memory, since they run one after the other.
        """
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        except (RuntimeError, BackendError) as error:
            _LOG.warning("a CUDA graph was not captured, so its work is launched: %s", error)
            return None
        return CudaGraph(self, graph)


@dataclass(frozen=True, eq=False)
class CudaGraph:
    """A CUDA graph that is replayed on its own stream rather than the current one."""

    stream: CudaStream
    graph: torch.cuda.CUDAGraph

    def replay(self) -> None:
        """Enqueue the work."""
        self.stream.run(self.graph.replay)
