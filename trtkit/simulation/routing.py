"""Which replica a request goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array
    from trtkit.simulation.replica import Replica
    from trtkit.simulation.requests import SimulatedRequest

_REMEMBERED = 1 << 20
"""First blocks of prompts of which a router by prefix knows where they went."""


class Router(Protocol):
    """What chooses a replica for each request."""

    def choose(self, request: SimulatedRequest) -> Replica:
        """Return a replica."""

    def update(self, replica: Replica) -> None:
        """Note that one of its replicas has moved on, or has one request more."""


def make_router(name: str, replicas: Sequence[Replica]) -> Router:
    """Return the router of a name."""
    if name == "round-robin":
        return RoundRobin(replicas)
    return LeastLoaded(replicas) if name == "least-loaded" else ByPrefix(replicas)


class RoundRobin:
    """One after the other."""

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
    """The one with the fewest requests, the first of several."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._places = {replica: place for place, replica in enumerate(replicas)}
        self._loads: Array = np.zeros(len(replicas), np.int64)

    def choose(self, request: SimulatedRequest) -> Replica:  # noqa: ARG002
        """Return the replica with the fewest requests."""
        return self._replicas[int(self._loads.argmin())]

    def update(self, replica: Replica) -> None:
        """Note how many requests a replica has."""
        self._loads[self._places[replica]] = replica.load


class ByPrefix:
    """The one with the least to do: prompt tokens that it would have to compute, and tokens that it has in work.

    NVIDIA Dynamo's router chooses by the same sum, and is told what caches hold, too.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._places = {replica: place for place, replica in enumerate(replicas)}
        self._work: Array = np.zeros(len(replicas), np.int64)
        self._visited: dict[int, set[int]] = {}  # where prompts went that began with a block

    def choose(self, request: SimulatedRequest) -> Replica:
        """Return the replica with the least to do."""
        cost = self._work.copy()
        if not request.hashes:
            return self._replicas[int(cost.argmin())]
        visited = self._visited.setdefault(request.hashes[0], set())
        for place in list(visited):
            shared = self._replicas[place].shared_tokens(request)
            cost[place] -= shared
            if not shared and not self._replicas[place].load:
                visited.remove(place)  # it has been evicted
        place = int(cost.argmin())
        visited.add(place)
        if len(self._visited) > _REMEMBERED:
            del self._visited[next(iter(self._visited))]
        return self._replicas[place]

    def update(self, replica: Replica) -> None:
        """Note the tokens that a replica has in work."""
        self._work[self._places[replica]] = replica.work_tokens
