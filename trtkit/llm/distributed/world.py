"""This process's rank, the number of ranks, and how they meet."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from trtkit.errors import RequestError
from trtkit.reference.ranks import gloo_group

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from trtkit.reference.ranks import GlooGroup

LOOPBACK = "127.0.0.1"
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
CONNECT_TIMEOUT_S = 30.0


@dataclass(frozen=True, eq=False)
class World:
    """A rank among `count` processes.

    local_rank: its number on this machine, which is also its GPU's. store: shared by all ranks. host: address that
    ranks listen on; empty for that of the machine's name. is_launched: whether a launcher such as torchrun started the
    ranks rather than rank 0.
    """

    rank: int
    count: int
    local_rank: int
    store: Store
    host: str
    is_launched: bool

    def group(self, name: str, ranks: range) -> GlooGroup:
        """Return a gloo group of `ranks`, which include this one; all of them must call this at about the same time."""
        from torch._C._distributed_c10d import PrefixStore

        store = PrefixStore(f"{name} {ranks.start}", self.store)
        return gloo_group(store, ranks.index(self.rank), len(ranks), CONNECT_TIMEOUT_S, self.host)


def launched_count() -> int | None:
    """Return how many ranks a launcher such as torchrun started (RANK, WORLD_SIZE, ...); None without a launcher."""
    if any(name not in os.environ for name in _VARIABLES):
        return None
    return int(os.environ["WORLD_SIZE"])


def launched_rank() -> int:
    """Return this process's rank under a launcher; 0 without one."""
    return 0 if launched_count() is None else int(os.environ["RANK"])


def launched_world() -> World:
    """Return the world that the launcher describes in the environment.

    Raises RequestError on rank 0 the second time: the other ranks serve one bundle and exit.
    """
    from torch._C._distributed_c10d import PrefixStore

    store, rank, count = _rendezvous()
    if rank == 0 and store.add("trtkit groups", 1) > 1:
        fix = "open one bundle of several ranks, or start without a launcher: every bundle then starts its own ranks"
        raise RequestError("the launched ranks serve one bundle, which has been opened", "RANK", fix)
    master = os.environ["MASTER_ADDR"]
    host = LOOPBACK if master == "localhost" or master.startswith("127.") else ""
    local = int(os.environ.get("LOCAL_RANK", rank))
    return World(rank, count, local, PrefixStore("trtkit", store), host, is_launched=True)


def host_world(count: int) -> tuple[World, int]:
    """Return rank 0 of a world of processes on this machine, and the port of its store on the loopback address."""
    from torch._C._distributed_c10d import TCPStore

    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    listener.listen()
    port: int = listener.getsockname()[1]
    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return World(0, count, 0, store, LOOPBACK, is_launched=False), port


def member_world(rank: int, count: int, port: int) -> World:
    """Return another rank of the world that `host_world` created."""
    from torch._C._distributed_c10d import TCPStore

    return World(rank, count, rank, TCPStore(LOOPBACK, port, is_master=False), LOOPBACK, is_launched=False)


@cache
def _rendezvous() -> tuple[Store, int, int]:
    """Return the launcher's store, created once per process, since rank 0 may own its port."""
    from torch.distributed import rendezvous  # type: ignore[attr-defined]

    store, rank, count = next(rendezvous("env://"))
    return store, rank, count
