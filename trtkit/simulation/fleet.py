"""Replicas that share a router, which chooses one for each request, advanced in the order of their events."""

from __future__ import annotations

import gc
import math
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from trtkit.llm.scheduler.request import Metrics
from trtkit.simulation.record import Record
from trtkit.simulation.replica import Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.arrays import Array
    from trtkit.simulation.record import Recorder
    from trtkit.simulation.replica_options import ReplicaOptions
    from trtkit.simulation.requests import SimulatedRequest, Traffic


_REMEMBERED = 1 << 20
"""Number of prompts' first blocks whose replica a router by prefix remembers."""


class Router(Protocol):
    """Chooses a replica for each request."""

    def choose(self, request: SimulatedRequest) -> Replica:
        """Return the replica for a request."""

    def update(self, replica: Replica) -> None:
        """Record that a replica has advanced or has been given a request."""


def make_router(name: str, replicas: Sequence[Replica]) -> Router:
    """Return the router called `name`."""
    if name == "round-robin":
        return RoundRobin(replicas)
    return LeastLoaded(replicas) if name == "least-loaded" else ByPrefix(replicas)


class RoundRobin:
    """Chooses replicas in turn."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas, self._next = replicas, 0

    def choose(self, request: SimulatedRequest) -> Replica:  # noqa: ARG002
        """Return the next replica."""
        replica = self._replicas[self._next]
        self._next = (self._next + 1) % len(self._replicas)
        return replica

    def update(self, replica: Replica) -> None:
        """Do nothing."""


class LeastLoaded:
    """Chooses the replica with the fewest requests, the first of several."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._places = {replica: index for index, replica in enumerate(replicas)}
        self._loads: Array = np.zeros(len(replicas), np.int64)

    def choose(self, request: SimulatedRequest) -> Replica:  # noqa: ARG002
        """Return the replica with the fewest requests."""
        return self._replicas[int(self._loads.argmin())]

    def update(self, replica: Replica) -> None:
        """Record a replica's number of requests."""
        self._loads[self._places[replica]] = replica.load


class ByPrefix:
    """Chooses the replica with the least work: prompt tokens that it would compute, and tokens of its current requests.

    NVIDIA Dynamo's router minimizes the same sum, with the cache contents that replicas report.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._places = {replica: index for index, replica in enumerate(replicas)}
        self._work: Array = np.zeros(len(replicas), np.int64)
        self._visited: dict[int, set[int]] = {}  # replicas that prompts starting with a block were sent to

    def choose(self, request: SimulatedRequest) -> Replica:
        """Return the replica with the least work."""
        cost = self._work.copy()
        if not request.hashes:
            return self._replicas[int(cost.argmin())]
        visited = self._visited.setdefault(request.hashes[0], set())
        for index in list(visited):
            shared = self._replicas[index].shared_tokens(request)
            cost[index] -= shared
            if not shared and not self._replicas[index].load:
                visited.remove(index)  # the prefix has been evicted
        index = int(cost.argmin())
        visited.add(index)
        if len(self._visited) > _REMEMBERED:
            del self._visited[next(iter(self._visited))]
        return self._replicas[index]

    def update(self, replica: Replica) -> None:
        """Record the tokens of a replica's current requests."""
        self._work[self._places[replica]] = replica.work_tokens


RouterName = Literal["round-robin", "least-loaded", "prefix"]
ROUTERS: tuple[RouterName, ...] = ("round-robin", "least-loaded", "prefix")


@dataclass(frozen=True)
class FleetOptions:
    """Replicas of one kind. prefill_replicas: additional ones that only compute prompts for the others.

    transfer_s_per_token: seconds to move a token's cache from one replica to another.
    """

    replica: ReplicaOptions
    replicas: int = 1
    router: RouterName = "round-robin"
    prefill_replicas: int = 0
    transfer_s_per_token: float = 0.0

    @property
    def engines(self) -> int:
        """Number of all replicas."""
        return self.replicas + self.prefill_replicas

    @property
    def gpus(self) -> int:
        """Number of GPUs of all replicas."""
        return self.engines * self.replica.gpus


def simulate(traffic: Traffic, options: FleetOptions, on_progress: Callable[[int], None] = lambda _: None) -> Record:
    """Serve all requests and return what happened.

    on_progress: called at intervals with the number of finished requests.
    """
    record = Record(traffic)
    fleet = Fleet(options, record)
    told = 0
    with _no_garbage_collection():
        for request in traffic.requests():
            fleet.run_until(request.arrival_s)
            fleet.submit(request)
            if record.done - told >= 1000:
                on_progress(told := record.done)
        fleet.run_until(float("inf"))
    on_progress(record.done)
    return record


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn off Python's garbage collector, which would take a tenth of a simulation; steps leave no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Fleet:
    """Replicas that take requests and advance in the order of their next events."""

    def __init__(self, options: FleetOptions, recorder: Recorder) -> None:
        self._options, self._recorder = options, recorder
        replica_options = options.replica
        self.replicas = [Replica(replica_options, recorder) for _ in range(options.replicas)]
        self._router = make_router(options.router, self.replicas)
        handing_on = _HandOn(recorder, self._hand_on)
        self._prefill = [Replica(replica_options, handing_on) for _ in range(options.prefill_replicas)]
        self._prefill_router = make_router(options.router, self._prefill)
        self._events: list[tuple[float, int, Replica | SimulatedRequest, Router]] = []
        self._entries = 0

    def submit(self, request: SimulatedRequest) -> None:
        """Submit a request at its arrival."""
        request.is_prompt_alone = bool(self._prefill)
        router = self._prefill_router if self._prefill else self._router
        self._give(router, request, request.arrival_s)

    def run_until(self, end_s: float) -> None:
        """Process all events before `end_s`; those at `end_s` come after arrivals."""
        events = self._events
        while events and events[0][0] < end_s:
            at_s, _, item, router = heappop(events)
            if not isinstance(item, Replica):
                self._give(router, item, at_s)
            elif item.event_s == at_s:  # otherwise the event was rescheduled and has another entry
                item.advance()
                router.update(item)
                if (next_s := item.event_s) < math.inf:
                    self._entries += 1
                    heappush(events, (next_s, self._entries, item, router))

    def _give(self, router: Router, request: SimulatedRequest, at_s: float) -> None:
        replica = router.choose(request)
        before = replica.event_s
        replica.submit(request, at_s)
        router.update(replica)
        if replica.event_s != before:
            self._push(replica.event_s, replica, router)

    def _hand_on(self, request: SimulatedRequest, now_s: float) -> None:
        """Send a computed prompt to a replica that decodes; it arrives after the transfer."""
        request.is_prompt_alone = False
        request.imported = request.prompt_tokens - 1
        request.is_handed_on, request.is_unread, request.metrics, request.generated = True, True, Metrics(), []
        request.first_token_s = float("nan")
        self._push(now_s + request.prompt_tokens * self._options.transfer_s_per_token, request, self._router)

    def _push(self, at_s: float, item: Replica | SimulatedRequest, router: Router) -> None:
        self._entries += 1
        heappush(self._events, (at_s, self._entries, item, router))


class _HandOn:
    """A Recorder of prefill replicas: requests that are complete there continue elsewhere."""

    def __init__(self, inner: Recorder, hand_on: Callable[[SimulatedRequest, float], None]) -> None:
        self._inner, self._hand_on = inner, hand_on
        self.match, self.read, self.drop, self.pass_time = inner.match, inner.read, inner.drop, inner.pass_time

    def begin(self, request: SimulatedRequest, now_s: float, shared: int, restored: int) -> None:
        """Count a prompt; see Recorder."""
        self._inner.begin(request, now_s, shared, restored)

    def finish(self, request: SimulatedRequest, now_s: float) -> None:
        """Send a request on to a replica that decodes; see Recorder."""
        self._hand_on(request, now_s)
