"""Sequences that decode together: all gain a token each step, so a run of steps takes one look at the batch."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.simulation.requests import SimulatedRequest


class Lockstep:
    """Requests by slot. tick: decode steps so far. cached: tokens that all of them have in their caches."""

    def __init__(self) -> None:
        self.requests: dict[int, SimulatedRequest] = {}
        self.tick, self.cached = 0, 0
        self._ends: list[tuple[int, int, int]] = []  # the tick of its last token, slot and number of each request

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, request: SimulatedRequest, cached: int) -> None:
        """Let a request decode, whose tokens but the last are cached."""
        request.cached, request.tick = cached, self.tick
        self.requests[request.slot] = request
        self.cached += cached
        heappush(self._ends, (self._end_of(request), request.slot, request.number))

    def remove(self, request: SimulatedRequest) -> int:
        """Take a request out; return how many of its tokens are cached."""
        del self.requests[request.slot]
        cached = self.cached_of(request)
        self.cached -= cached
        return cached

    def cached_of(self, request: SimulatedRequest) -> int:
        """Return how many of a request's tokens are cached."""
        return request.cached + self.tick - request.tick

    @property
    def rows(self) -> int:
        """Rows of a decode call: all slots from the first to the last, idle ones among them."""
        return max(self.requests) - min(self.requests) + 1

    @staticmethod
    def _end_of(request: SimulatedRequest) -> int:
        """Return the tick at which a request is complete."""
        return request.tick + request.end - request.cached - 1

    @property
    def steps_left(self) -> int:
        """Steps until a request is complete."""
        while True:
            tick, slot, number = self._ends[0]
            request = self.requests.get(slot)
            if request is not None and request.number == number and self._end_of(request) == tick:
                return tick - self.tick
            heappop(self._ends)

    def advance(self, steps: int) -> list[SimulatedRequest]:
        """Let so many steps pass, no more than are left; return who is complete, by slot."""
        is_last = steps == self.steps_left
        self.tick += steps
        self.cached += steps * len(self.requests)
        complete: dict[int, SimulatedRequest] = {}
        while is_last and self._ends and self._ends[0][0] <= self.tick:
            _, slot, number = heappop(self._ends)
            request = self.requests.get(slot)
            if request is not None and request.number == number and self.cached_of(request) == request.end - 1:
                complete[slot] = request
        return [complete[slot] for slot in sorted(complete)]
