"""The queue of requests that have no slot yet."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from trtkit.errors import GenerationError, RequestError

if TYPE_CHECKING:
    from trtkit.runtime.generation.request import Request


class Waiting:
    """Requests by priority, then by arrival. A preempted one comes back to its old place."""

    def __init__(self, limit: int | None) -> None:
        self._limit, self._arrivals = limit, 0
        self._heap: list[tuple[int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def check_room(self, count: int) -> None:
        """Raise RequestError for more requests than ever fit, GenerationError for more than fit now."""
        if self._limit is None:
            return
        if count > self._limit:
            what = f"`{count}` answers are more than the queue takes, {self._limit}"
            raise RequestError(what, "n", "ask for fewer, or allow a longer queue (`max_queue`)")
        if len(self._heap) + count > self._limit:
            fix = "wait for answers, or allow a longer queue (`max_queue`)"
            raise GenerationError(f"{len(self._heap)} requests are waiting already", "", fix)

    def add(self, request: Request) -> None:
        """Take a new request. Raises as `check_room` does."""
        self.check_room(1)
        request.arrival = self._arrivals
        self._arrivals += 1
        self.put_back(request)

    def put_back(self, request: Request) -> None:
        """Take a request that had a slot."""
        heappush(self._heap, (request.priority, request.arrival, request))

    def first(self) -> Request | None:
        """Return the request whose turn it is."""
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Request:
        """Remove the request whose turn it is."""
        return heappop(self._heap)[2]

    def remove(self, request_id: str) -> Request | None:
        """Remove a request, None where it does not wait."""
        for index, (_, _, request) in enumerate(self._heap):
            if request.id == request_id:
                self._heap[index] = self._heap[-1]
                self._heap.pop()
                heapify(self._heap)
                return request
        return None
