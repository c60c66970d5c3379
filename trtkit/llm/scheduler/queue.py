"""Requests that wait for a slot, in the order of a schedule."""

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
    """What a step does for whom. decoding, reading: whom it serves. idle: who has a slot and is not served.

    Once it is over: prompt_tokens that it computed, and `tokens` of each request in `decoding`.
    """

    decoding: Sequence[T]
    reading: Sequence[T]
    idle: Sequence[T]
    seconds: float = 0.0
    ended_s: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 1


class _Place(Generic[T]):
    """Where a request waits; None once it has left."""

    __slots__ = ("request",)

    def __init__(self, request: T) -> None:
        self.request: T | None = request


class RequestQueue(Generic[T]):
    """Requests by level, on each level by their users' shares, then by deadline and arrival.

    A preempted one comes back to its old place. limit: requests that may wait; None: any number. counts: whether the
    order depends on what steps do, so that `account` has to be told.
    """

    def __init__(self, options: SharingOptions) -> None:
        schedule = options.schedule
        self.policy = make_policy(schedule)
        self._shares = None if schedule.shares is None else Shares(schedule.shares)
        self.counts = self.policy.measures or self._shares is not None
        self.limit, self._arrivals, self._entries = options.max_queue, 0, 0
        self._places: dict[int, _Place[T]] = {}
        self._lanes: dict[tuple[int, int], dict[str, list[tuple[Order, int, _Place[T]]]]] = {}
        self._alarms: list[tuple[float, int, _Place[T]]] = []  # deadlines, and when waiting has taken too long

    def __len__(self) -> int:
        return len(self._places)

    def check_room(self, count: int) -> None:
        """Raise RequestError for more requests than ever fit, OverloadedError for more than fit now."""
        if self.limit is None:
            return
        if count > self.limit:
            what = f"`{count}` answers exceed the queue's limit, {self.limit}"
            raise RequestError(what, "n", "ask for fewer, or raise `max_queue`")
        if len(self) + count > self.limit:
            fix = "wait for answers, or raise `max_queue`"
            raise OverloadedError(f"{len(self)} requests are already waiting", "", fix)

    def add(self, request: T, arrived_s: float) -> None:
        """Take a new request. Raises as `check_room` does."""
        self.check_room(1)
        level = self.policy.level(request.scheduling, request.prompt_tokens)
        standing = Standing(self._arrivals, level, served_s=arrived_s, is_by_deadline=self.policy.is_by_deadline)
        if request.scheduling.deadline_s is not None:
            standing.due_s = arrived_s + request.scheduling.deadline_s
        request.standing = standing
        self._arrivals += 1
        self.put_back(request)

    def put_back(self, request: T) -> None:
        """Take a request that had a slot."""
        if self._shares is not None:
            self._shares.add(request.scheduling.user)
        self._line_up(request)
        if self.policy.starvation_s < math.inf and not request.standing.is_promoted:
            self._wake_at(request.standing.served_s + self.policy.starvation_s, request)

    def first(self) -> T | None:
        """Return the request whose turn it is."""
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
        """Return the next requests of the first in turn's level and user, at most `count`."""
        if self.first() is None:
            return []
        users = self._lanes[min(self._lanes)]
        entries = nsmallest(count, users[self._next_user(users)])
        return [place.request for _, _, place in entries if place.request is not None]

    def in_order(self) -> list[T]:
        """Return all requests in order; of users with shares, those of who was served least first."""
        entries = [
            ((key, self._used(user), order), place.request)
            for key, users in self._lanes.items()
            for user, heap in users.items()
            for order, _, place in heap
        ]
        return [request for _, request in sorted(entries, key=lambda entry: entry[0]) if request is not None]

    def begin(self, request: T) -> None:
        """Remove a request that gets a slot. Who was first when room was made for it may not be any more."""
        if not request.standing.has_begun and self._shares is not None:
            self._shares.charge(request.scheduling.user, PROMPT_TOKEN * request.prompt_tokens + OUTPUT_TOKEN)
        self._leave(request)
        request.standing.has_begun = True

    def remove(self, request_id: str) -> T | None:
        """Remove a request, None if it does not wait."""
        waiting = (place.request for place in self._places.values())
        request = next((each for each in waiting if each is not None and each.id == request_id), None)
        if request is not None:
            self._leave(request)
        return request

    def wake(self, now_s: float) -> list[T]:
        """Promote those who have waited too long; remove and return those whose deadline passed before they began."""
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
        """When `wake` has something to do, at the earliest."""
        return self._alarms[0][0] if self._alarms else math.inf

    def account(self, service: Service[T]) -> bool:
        """Count what a step did; return whether the order of requests that have slots has changed."""
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
        """Give a request a place by its order."""
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
        """Return a number that no other entry of a heap has: places cannot be compared."""
        self._entries += 1
        return self._entries

    def _leave(self, request: T) -> None:
        self._places.pop(request.standing.arrival).request = None
        if self._shares is not None:
            self._shares.remove(request.scheduling.user)

    def _used(self, user: str) -> float:
        """Return what a user's share has come to; 0 if nobody has shares."""
        return 0.0 if self._shares is None else self._shares.used(user)

    def _next_user(self, users: dict[str, list[tuple[Order, int, _Place[T]]]]) -> str:
        """Return the user who was served least; among equals, whose request comes first."""
        shares = self._shares
        if shares is None or len(users) == 1:
            return next(iter(users))
        return min(users, key=lambda user: (shares.used(user), users[user][0][0]))
