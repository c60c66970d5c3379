"""The simulated runtime on a GPU: torch computes the layers on CUDA, on the memory and streams that it is given.

Streams, events, graphs and pinned copies are real, so work that is in the wrong order really races. Rules that
HostDevice checks by its books (who owns memory, which stream waits for which) are the hardware's business here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trtkit.runtime.communicator import HostCommunicator
from trtkit.runtime.device import CudaDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.reference import Rank


@dataclass(frozen=True)
class BorrowedStream:
    """A stream of the caller's. pending: what the host knows of its work, which is nothing."""

    handle: int
    pending: tuple[()] = ()

    def run(self, work: Callable[[], object]) -> None:
        """Put what `work` launches on the stream."""
        with torch.cuda.stream(torch.cuda.ExternalStream(self.handle)):
            work()

    def synchronize(self) -> None:
        """Wait until all work is done."""
        torch.cuda.ExternalStream(self.handle).synchronize()


class BorrowedStreams:
    """Streams by handle. Every handle but the default stream's is taken for a stream."""

    def __contains__(self, handle: int) -> bool:
        return handle > 0

    def get(self, handle: int) -> BorrowedStream | None:
        """Return the stream of a handle."""
        return BorrowedStream(handle) if handle in self else None

    def items(self) -> tuple[tuple[int, BorrowedStream], ...]:
        """Return none: what other streams do is not known."""
        return ()


class SimulatedGpu(CudaDevice):
    """The current GPU, on which TensorRT is simulated: engines of any compute capability run.

    communicators: the ranks that a communicator's pointer stands for.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.backends.cudnn.allow_tf32 = False  # as engines are built
        self.name = f"{self.name}, simulated TensorRT"
        self.compute_capability = None
        self.streams, self.communicators = BorrowedStreams(), dict[int, "Rank"]()
        self._views: dict[tuple[int, int], torch.Tensor] = {}

    @property
    def capturing(self) -> bool | None:
        """Whether the current stream is captured; None if not."""
        return torch.cuda.is_current_stream_capturing() or None

    @property
    def allocated_bytes(self) -> int:
        """Memory in use, by whoever."""
        return self.memory_bytes - self.free_bytes

    def connect(self, ranks: Rank) -> Any:
        """Return a communicator that stands for the ranks themselves: tensors go through the host."""
        return HostCommunicator(self.communicators, ranks)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return memory."""
        return torch.empty(tuple(shape), dtype=dtype, device="cuda")

    def holds(self, _address: int, _size_bytes: int) -> bool:
        """Return True: a wrong address is a fault of the GPU's."""
        return True

    def view(self, address: int, size_bytes: int) -> torch.Tensor:
        """Return memory [size_bytes] uint8 that belongs to the caller; the same tensor again, also in a capture."""
        key = address, size_bytes
        if key not in self._views:
            self._views[key] = torch.as_tensor(_Memory(address, size_bytes), device="cuda")
        return self._views[key]


class _Memory:
    """Raw memory as torch takes it. Source: Numba's CUDA Array Interface, version 3."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
