"""Requests waiting for a slot, in the order of a schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest
from typing import TYPE_CHECKING, Generic

from trtkit.errors import OverloadedError, RequestError
from trtkit.llm.scheduler.policy import OUTPUT_TOKEN, PROMPT_TOKEN, Shares, Standing, make_policy
from trtkit.llm.scheduler.request import T

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.scheduler.options import SharingOptions
    from trtkit.llm.scheduler.policy import Order


@dataclass(frozen=True, eq=False)
class Service(Generic[T]):
    """Whom a step serves. decoding, reading: the requests it serves. idle: those with a slot that it does not serve.

    Known at its end: prompt_tokens, all that it computed; tokens, generated per request in `decoding`.
    """

    decoding: Sequence[T]
    reading: Sequence[T]
    idle: Sequence[T]
    seconds: float = 0.0
    ended_s: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 1


class _Place(Generic[T]):
    """A request's entry in the heaps; `request` is None once it has left."""

    __slots__ = ("request",)

    def __init__(self, request: T) -> None:
        self.request: T | None = request


class RequestQueue(Generic[T]):
    """Waiting requests by level, then by their users' shares, then by deadline and arrival.

    A preempted request returns to its former position. limit: on waiting requests; None if unlimited. counts: whether
    the order depends on past steps, which `account` must then be told about.
    """

    def __init__(self, options: SharingOptions) -> None:
        schedule = options.schedule
        self.policy = make_policy(schedule)
        self._shares = None if schedule.shares is None else Shares(schedule.shares)
        self.counts = self.policy.measures or self._shares is not None
        self.limit, self._arrivals, self._entries = options.max_queue, 0, 0
        self._places: dict[int, _Place[T]] = {}
        self._lanes: dict[tuple[int, int], dict[str, list[tuple[Order, int, _Place[T]]]]] = {}
        self._alarms: list[tuple[float, int, _Place[T]]] = []  # deadlines, and times at which a request starves

    def __len__(self) -> int:
        return len(self._places)

    def check_room(self, count: int) -> None:
        """Raise RequestError if `count` requests never fit, OverloadedError if they do not fit now."""
        if self.limit is None:
            return
        if count > self.limit:
            what = f"`{count}` answers exceed the queue's limit, {self.limit}"
            raise RequestError(what, "n", "ask for fewer, or raise `max_queue`")
        if len(self) + count > self.limit:
            fix = "wait for answers, or raise `max_queue`"
            raise OverloadedError(f"{len(self)} requests are already waiting", "", fix)

    def add(self, request: T, arrived_s: float) -> None:
        """Add a new request. Raises as `check_room` does."""
        self.check_room(1)
        level = self.policy.level(request.scheduling, request.prompt_tokens)
        standing = Standing(self._arrivals, level, served_s=arrived_s, is_by_deadline=self.policy.is_by_deadline)
        if request.scheduling.deadline_s is not None:
            standing.due_s = arrived_s + request.scheduling.deadline_s
        request.standing = standing
        self._arrivals += 1
        self.put_back(request)

    def put_back(self, request: T) -> None:
        """Add a request that was preempted."""
        if self._shares is not None:
            self._shares.add(request.scheduling.user)
        self._line_up(request)
        if self.policy.starvation_s < math.inf and not request.standing.is_promoted:
            self._wake_at(request.standing.served_s + self.policy.starvation_s, request)

    def first(self) -> T | None:
        """Return the request that is next in order; None if none waits."""
        while self._places and self._lanes:
            key = min(self._lanes)
            users = self._lanes[key]
            for user, heap in tuple(users.items()):
                while heap and heap[0][2].request is None:
                    heappop(heap)
                if not heap:
                    del users[user]
            if users:
                return users[self._next_user(users)][0][2].request
            del self._lanes[key]
        return None

    def upcoming(self, count: int) -> list[T]:
        """Return at most `count` next requests, of the same level and user as the first one."""
        if self.first() is None:
            return []
        users = self._lanes[min(self._lanes)]
        entries = nsmallest(count, users[self._next_user(users)])
        return [entry.request for _, _, entry in entries if entry.request is not None]

    def in_order(self) -> list[T]:
        """Return all requests in order; with shares, those of the least served user first."""
        entries = [
            ((key, self._used(user), order), place.request)
            for key, users in self._lanes.items()
            for user, heap in users.items()
            for order, _, place in heap
        ]
        return [request for _, request in sorted(entries, key=lambda entry: entry[0]) if request is not None]

    def begin(self, request: T) -> None:
        """Remove a request that gets a slot; it need not be the first: making room for it may have changed that."""
        if not request.standing.has_begun and self._shares is not None:
            self._shares.charge(request.scheduling.user, PROMPT_TOKEN * request.prompt_tokens + OUTPUT_TOKEN)
        self._leave(request)
        request.standing.has_begun = True

    def remove(self, request_id: str) -> T | None:
        """Remove and return a request; None if it does not wait."""
        waiting = (entry.request for entry in self._places.values())
        request = next(
            (candidate for candidate in waiting if candidate is not None and candidate.id == request_id), None
        )
        if request is not None:
            self._leave(request)
        return request

    def wake(self, now_s: float) -> list[T]:
        """Promote starved requests; remove and return those whose deadline passed before they got a slot."""
        late = []
        while self._alarms and self._alarms[0][0] <= now_s:
            request = heappop(self._alarms)[2].request
            if request is None:
                continue
            if not request.standing.has_begun and request.standing.due_s <= now_s:
                self._leave(request)
                late.append(request)
            elif self._is_starved(request.standing, now_s):
                request.standing.promote()
                self._places.pop(request.standing.arrival).request = None
                self._line_up(request)
        return late

    @property
    def next_alarm_s(self) -> float:
        """The earliest time at which `wake` has something to do."""
        return self._alarms[0][0] if self._alarms else math.inf

    def account(self, service: Service[T]) -> bool:
        """Charge a step to the requests it served; return whether the order of running requests has changed."""
        if self._shares is not None:
            for request in service.decoding:
                self._shares.charge(request.scheduling.user, OUTPUT_TOKEN * service.tokens)
        if not self.policy.measures:
            return False
        served = [request.standing for request in (*service.decoding, *service.reading)]
        for standing in served:
            standing.served_s = service.ended_s
        starved = [request.standing for request in service.idle if self._is_starved(request.standing, service.ended_s)]
        for standing in starved:
            standing.promote()
        return self.policy.charge(served, service.seconds, service.prompt_tokens) or bool(starved)

    def _is_starved(self, standing: Standing, now_s: float) -> bool:
        return not standing.is_promoted and standing.served_s + self.policy.starvation_s <= now_s

    def _line_up(self, request: T) -> None:
        """Push a request onto the heap of its level and user."""
        standing, order = request.standing, request.standing.order
        place = self._places[standing.arrival] = _Place(request)
        users = self._lanes.setdefault(order[:2], {})
        user = "" if self._shares is None or standing.is_promoted else request.scheduling.user
        heappush(users.setdefault(user, []), (order, self._next_entry(), place))
        if standing.due_s < math.inf and not standing.has_begun:
            self._wake_at(standing.due_s, request)

    def _wake_at(self, at_s: float, request: T) -> None:
        heappush(self._alarms, (at_s, self._next_entry(), self._places[request.standing.arrival]))

    def _next_entry(self) -> int:
        """Return a number that breaks ties between heap entries, which cannot be compared."""
        self._entries += 1
        return self._entries

    def _leave(self, request: T) -> None:
        self._places.pop(request.standing.arrival).request = None
        if self._shares is not None:
            self._shares.remove(request.scheduling.user)

    def _used(self, user: str) -> float:
        """Return a user's weighted service so far; 0 without shares."""
        return 0.0 if self._shares is None else self._shares.used(user)

    def _next_user(self, users: dict[str, list[tuple[Order, int, _Place[T]]]]) -> str:
        """Return the least served user; among equals, the one whose request comes first."""
        shares = self._shares
        if shares is None or len(users) == 1:
            return next(iter(users))
        return min(users, key=lambda user: (shares.used(user), users[user][0][0]))
