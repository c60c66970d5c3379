"""Host memory with a GPU's rules, on which engines run in tests.

Streams run their work as late as a GPU may: when somebody waits for it. With `hurries`, they run it as early as a GPU
may: at once. A missing wait therefore gives wrong values in tests, too.
"""

from __future__ import annotations

import math
import os
import weakref
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from trtkit.errors import ExecutionError
from trtkit.runtime.communicator import HostCommunicator
from trtkit.runtime.device import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from trtkit.reference import Rank
    from trtkit.runtime.device import Event


class Watch(Protocol):
    """Observes a device: its launches, and the host's waits."""

    def paused(self) -> AbstractContextManager[None]:
        """Suspend observation, while torch computes what the device's own kernels would."""
        ...

    def on(self, stream: HostStream, *, in_graph: bool = False) -> AbstractContextManager[None]:
        """Run a stream's work."""
        ...

    def pin(self, memory: torch.Tensor) -> None:
        """Record that host memory is pinned."""
        ...

    def launch(self, what: str) -> None:
        """Count a launch."""
        ...

    def wait(self, what: str) -> None:
        """Count a wait of the host."""
        ...

    def let_wait(self, stream: HostStream) -> None:
        """Record that a stream waits for what the caller's own stream has written so far."""
        ...

    def check_written(self, tensor: torch.Tensor, stream: HostStream) -> None:
        """Raise ExecutionError if a stream is given memory that the caller's own stream has yet to write."""
        ...


class HostDevice:
    """Host memory with a GPU's rules: aligned, NaN until written, and with work that runs when it is waited for.

    streams: by handle, as TensorRT names them. communicators: the ranks that each communicator's pointer represents.
    hurries: whether sibling streams run their work at once, unless it waits for another stream's. watch: counts
    launches and waits, if given. failing_captures: how many of the next captures fail. captures: number of captures
    tried.
    """

    def __init__(self, *, hurries: bool = False) -> None:
        self.hurries = hurries
        self.name = "host memory"
        self.compute_capability: int | None = None
        self.environment = self.name
        self.failing_captures = self.captures = 0
        self.memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.streams: dict[int, HostStream] = {}
        self.communicators: dict[int, Rank] = {}
        self.capturing: HostGraph | None = None
        self.watch: Watch | None = None
        self._sizes: dict[int, int] = {}

    def stream(self) -> HostStream:
        stream = HostStream(self, len(self.streams) + 1)
        self.streams[stream.handle] = stream
        return stream

    def connect(self, ranks: Rank) -> HostCommunicator:
        """Return a communicator that represents the ranks themselves."""
        return HostCommunicator(self.communicators, ranks)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return aligned memory filled with bytes of 255.

        NaN, or an integer that is not a token. Not during a capture.
        """
        self.check_not_capturing("memory is allocated")
        size = math.prod(shape) * dtype.itemsize
        block = np.full(size + ALIGNMENT, 0xFF, np.uint8)
        offset = -block.ctypes.data % ALIGNMENT
        address = block.ctypes.data + offset
        self._sizes[address] = size
        weakref.finalize(block, self._sizes.pop, address, None)
        with nullcontext() if self.watch is None else self.watch.paused():
            return torch.from_numpy(block)[offset : offset + size].view(dtype).view(tuple(shape))

    @property
    def allocated_bytes(self) -> int:
        """Memory that is still referenced."""
        return sum(self._sizes.values())

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - self.allocated_bytes

    def holds(self, address: int, size_bytes: int) -> bool:
        """Whether referenced memory of at least `size_bytes` is at `address`."""
        return any(start <= address and address + size_bytes <= start + size for start, size in self._sizes.items())

    def check_not_capturing(self, what: str) -> None:
        """Raise ExecutionError during a capture, as CUDA does (cudaErrorStreamCaptureUnsupported)."""
        if self.capturing is not None:
            raise ExecutionError(f"{what} while a graph is captured", "CUDA graph", "do it before the capture")


@dataclass(frozen=True, eq=False)
class HostGraph:
    """Recorded calls."""

    stream: HostStream
    calls: list[Callable[[], object]] = field(default_factory=list)

    def replay(self) -> None:
        """Enqueue the calls."""
        self.stream.replay(self.calls)


@dataclass(eq=False)
class HostEvent:
    """The point of a stream after `count` calls."""

    stream: HostStream
    count: int
    was_queried: bool = False

    def is_past(self) -> bool:
        """Whether the calls up to it are done; if not, they are by the next time."""
        if self.was_queried:
            self.stream.run_to(self.count)
        self.was_queried = True
        return self.stream.is_done(self.count)

    def reach(self) -> None:
        """Run the calls up to it."""
        self.stream.run_to(self.count)

    def seconds_after(self, _earlier: Event) -> None:
        """Return None: the time at which work would have been done is unknown."""


class HostStream:
    """A queue of calls.

    pending: those that nothing has waited for yet, in order. hurries: whether calls run at once.
    """

    def __init__(self, device: HostDevice, handle: int, *, hurries: bool = False) -> None:
        self.handle, self._hurries = handle, hurries
        self._device = device
        self._done, self._is_running = 0, False
        self.pending: list[Callable[[], object]] = []

    def run(self, work: Callable[[], object]) -> None:
        """Enqueue `work`, or record it in the graph that is being captured."""
        calls = self.pending if self._device.capturing is None else self._device.capturing.calls
        calls.append(_without_owning(work, self._device, self))
        if self._hurries and self._device.capturing is None:
            self.run_to(self._done + len(self.pending))

    def replay(self, calls: Sequence[Callable[[], object]]) -> None:
        """Enqueue the calls of a graph."""
        watch = self._device.watch
        if watch is not None:
            watch.launch("graph")
        self.pending += [call if watch is None else partial(_in_graph, watch, self, call) for call in calls]

    def run_to(self, count: int) -> None:
        """Run the work up to a point; a failure discards the rest."""
        if self._is_running or count <= self._done:
            return
        self._is_running, works = True, self.pending[: count - self._done]  # pending calls own what they work on
        watch = self._device.watch
        try:
            for work in works:
                self._done += 1
                self.pending.pop(0)
                with nullcontext() if watch is None else watch.on(self):
                    work()
        except BaseException:
            self._done += len(self.pending)
            self.pending.clear()
            raise
        finally:
            self._is_running = False

    def is_done(self, count: int) -> bool:
        """Whether the work up to a point is done."""
        return self._done >= count

    def record(self) -> HostEvent:
        """Return the point after the work so far."""
        return HostEvent(self, self._done + len(self.pending))

    def wait(self, event: Event) -> None:
        """Make work enqueued here run after the work up to a point of another stream."""
        assert isinstance(event, HostEvent)
        self.run(event.reach)

    def sibling(self) -> HostStream:
        """Return another stream of the same device."""
        handle = len(self._device.streams) + 1
        stream = self._device.streams[handle] = HostStream(self._device, handle, hurries=self._device.hurries)
        return stream

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        memory = torch.empty(size_bytes, dtype=torch.uint8)
        if self._device.watch is not None:
            self._device.watch.pin(memory)
        return memory

    def wait_for_current(self) -> None:
        """Record the wait and do nothing else: the current stream's work is done when it is called."""
        if self._device.watch is not None:
            self._device.watch.let_wait(self)

    def hold_current(self) -> None:
        """Run all work now, so that it is done for whatever is called next."""
        self._device.check_not_capturing("another stream waits for one")
        self.run_to(self._done + len(self.pending))

    def synchronize(self) -> None:
        self._device.check_not_capturing("a stream is waited for")
        if self._device.watch is not None:
            self._device.watch.wait("a stream")
        self.run_to(self._done + len(self.pending))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self._device.allocate(shape, dtype)

    def capture(self, work: Callable[[], object]) -> HostGraph | None:
        """Return the calls that `work` makes to streams; None if the capture is set to fail."""
        self._device.check_not_capturing("another graph is captured")
        self._device.captures += 1
        if self._device.failing_captures:
            self._device.failing_captures -= 1
            return None
        self._device.capturing = graph = HostGraph(self)
        try:
            work()
        finally:
            self._device.capturing = None
        return graph


class _Borrowed:
    """A tensor in the caller's memory, which the caller may free before the stream reads it, as on a GPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._view = tensor.storage_offset(), tensor.shape, tensor.stride()
        self._dtype = tensor.dtype

    def read(self) -> torch.Tensor:
        """Return the tensor. Raises ExecutionError if its memory was freed."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            what = "the caller's memory was given back before the stream has read it"
            raise ExecutionError(what, "stream", "allocate it in the work that reads it, or keep it")
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._view)


def _in_graph(watch: Watch, stream: HostStream, call: Callable[[], object]) -> None:
    with watch.on(stream, in_graph=True):
        call()


def _without_owning(work: Callable[[], object], device: HostDevice, stream: HostStream) -> Callable[[], object]:
    """Return work that does not keep the caller's memory alive. Copied values count as staged, as on a GPU."""
    if device.watch is not None and isinstance(work, partial):
        for value in tree_leaves((work.args, getattr(work.func, "__self__", None))):
            if isinstance(value, torch.Tensor):
                device.watch.check_written(value, stream)
    if not isinstance(work, partial) or getattr(work.func, "__name__", "") == "copy_":
        return work

    def lend(value: object) -> object:
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(lend(item) for item in value)
        if isinstance(value, torch.Tensor) and value.numel() and not device.holds(value.data_ptr(), 1):
            return _Borrowed(value)
        return value

    function, lent, keywords = work.func, [lend(argument) for argument in work.args], work.keywords
    return lambda: function(*map(_returned, lent), **keywords)


def _returned(value: object) -> object:
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_returned(item) for item in value)
    return value.read() if isinstance(value, _Borrowed) else value
