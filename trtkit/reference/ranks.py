"""The ranks of a multi-device network: threads of one process, or processes that exchange tensors over gloo."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Barrier
from typing import TYPE_CHECKING, Protocol, cast

import torch

from trtkit.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._C._distributed_c10d import Store, Work

COLLECTIVE_TIMEOUT_S = 10.0
"""How long a rank waits for the others at a layer: all do the same work and arrive at about the same time."""
_LOOPBACK = "127.0.0.1"


class Rank(Protocol):
    """One rank of a group. rank: from 0 on. count: number of ranks."""

    @property
    def rank(self) -> int:
        """Index of this rank."""
        ...

    @property
    def count(self) -> int:
        """Number of ranks."""
        ...

    def exchange(self, key: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return copies of every rank's tensor for the layer `key`, by rank. Waits for all ranks."""
        ...

    def leave(self) -> None:
        """Make the other ranks fail instead of waiting for this one."""
        ...


@dataclass
class ThreadGroup:
    """Ranks as threads that exchange tensors. count: number of ranks."""

    count: int
    posted: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = Barrier(self.count)

    def member(self, rank: int) -> ThreadRank:
        """Return the group from the view of rank `rank`."""
        return ThreadRank(self, rank)


@dataclass(frozen=True)
class ThreadRank:
    """A rank of a group of threads."""

    group: ThreadGroup
    rank: int

    @property
    def count(self) -> int:
        return self.group.count

    def exchange(self, key: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return copies of every rank's tensor for the layer `key`, by rank. Waits for all ranks."""
        self.group.posted[key, self.rank] = tensor
        self.group.barrier.wait()
        parts = [self.group.posted[key, rank].clone() for rank in range(self.count)]  # later layers write in place
        self.group.barrier.wait()
        return parts

    def leave(self) -> None:
        """Make the other ranks fail instead of waiting for this one."""
        self.group.barrier.abort()


class GlooGroup(Protocol):
    """The subset of torch's ProcessGroupGloo in use."""

    def rank(self) -> int:
        """Index of this rank in the group."""
        ...

    def size(self) -> int:
        """Number of ranks."""
        ...

    def allgather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, timeout: timedelta) -> Work:
        """Gather every rank's tensor."""
        ...

    def broadcast(self, tensor: torch.Tensor, root: int, timeout: timedelta) -> Work:
        """Copy the root's tensor into all other ranks' tensors."""
        ...

    def send(self, tensors: Sequence[torch.Tensor], rank: int, tag: int) -> Work:
        """Send to one rank."""
        ...

    def recv(self, tensors: Sequence[torch.Tensor], rank: int, tag: int) -> Work:
        """Receive from one rank."""
        ...


class GlooRank:
    """A rank that is a process. Tensors are gathered, not reduced, so that every rank adds them in the same order.

    group: of gloo, see `gloo_group`. timeout_s: of each exchange. Tensors may have any type; they are on the CPU.
    """

    def __init__(self, group: GlooGroup, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> None:
        self._group, self.timeout_s = group, timeout_s
        self.rank, self.count = group.rank(), group.size()

    def exchange(self, key: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's tensor for the layer `key`, by rank. Waits for all ranks.

        Raises RankError if another rank is at another layer or has another shape, has exited, or does not arrive in
        time.
        """
        layer = f"{key} {tensor.dtype} {list(tensor.shape)}"
        mark = torch.tensor([zlib.crc32(layer.encode())]).view(torch.uint8)
        data = torch.cat([mark, tensor.contiguous().reshape(-1).view(torch.uint8)])
        parts = [torch.empty_like(data) for _ in range(self.count)]
        try:
            self._group.allgather(parts, data, timedelta(seconds=self.timeout_s)).wait()
        except RuntimeError as error:
            raise RankError(f"rank {self.rank} waited for the others in vain: {_first_line(error)}", key) from error
        for rank, part in enumerate(parts):
            if not torch.equal(part[: len(mark)], mark):
                what = f"rank {rank} is at another layer than rank {self.rank}, or brings another shape than `{layer}`"
                raise RankError(what, key, "give every rank the same bundle and the same calls")
        return [part[len(mark) :].clone().view(tensor.dtype).view(tensor.shape) for part in parts]

    def leave(self) -> None:
        """Do nothing: the others notice that the process has exited, or wait for their timeout."""


def gloo_group(
    store: Store, rank: int, count: int, timeout_s: float = COLLECTIVE_TIMEOUT_S, host: str = _LOOPBACK
) -> GlooGroup:
    """Return a gloo group of this process alone, separate from torch's default group.

    store: a part of one that all ranks share, used by no other group. timeout_s: of connecting, and of operations
    without their own limit. host: the address of this machine that the ranks listen on; empty for the one that its name
    resolves to. Raises RankError if the others do not connect in time.
    """
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=timeout_s)
    device = ProcessGroupGloo.create_device(hostname=host) if host else ProcessGroupGloo.create_default_device()
    options._devices = [device]
    try:
        return cast("GlooGroup", ProcessGroupGloo(store, rank, count, options))
    except RuntimeError as error:
        raise RankError(f"rank {rank} cannot reach the other ranks: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Return gloo's error message without its source location."""
    return str(error).partition("\n")[0].rpartition("] ")[2][:200]
