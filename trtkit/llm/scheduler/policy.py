"""Schedules: first come, first served; priority; multi-level feedback queue; and fair shares of users."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trtkit.llm.scheduler.options import ANYONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trtkit.llm.scheduler.options import ScheduleOptions, SchedulingParams

Order = tuple[int, int, float, int]


@dataclass(eq=False, slots=True)
class Standing:
    """A request's rank in the schedule. Times are in seconds of the engine's clock.

    arrival: sequence number. level: lower runs first; requests on the same level do not preempt each other.
    due_s: deadline for its first slot. used_s: service used of its level's quantum. served_s: when it was last served,
    or arrived. is_promoted: it starved and now comes first on its level. promotions: how often that has happened.
    has_begun: whether it ever had a slot. is_by_deadline: whether the earliest deadline comes first on a level.
    """

    arrival: int = 0
    level: int = 0
    due_s: float = math.inf
    used_s: float = 0.0
    served_s: float = 0.0
    is_promoted: bool = False
    promotions: int = 0
    has_begun: bool = False
    is_by_deadline: bool = True

    @property
    def order(self) -> Order:
        """Sort key: level, promoted requests first, deadline, arrival."""
        is_due = self.is_by_deadline and not self.is_promoted
        return (self.level, not self.is_promoted, self.due_s if is_due else math.inf, self.arrival)

    def promote(self) -> None:
        """Move to the head of the highest level."""
        self.level, self.used_s, self.is_promoted = 0, 0.0, True
        self.promotions += 1


class Policy(Protocol):
    """A schedule. starvation_s: time without service after which a request is promoted; infinite for never.

    is_by_deadline: whether the earliest deadline comes first on a level. measures: whether it needs the durations of
    steps. keeps_work: whether a request is preempted only if the host has room for its cache.
    """

    starvation_s: float
    is_by_deadline: bool
    measures: bool
    keeps_work: bool

    def level(self, scheduling: SchedulingParams, prompt_tokens: int) -> int:
        """Return the level that a request starts on."""

    def charge(self, standings: Iterable[Standing], seconds: float, prompt_tokens: int) -> bool:
        """Charge requests for a step that served them; return whether one moved to another level."""

    def left_s(self, standing: Standing) -> float:
        """Return the service left, in seconds, before a request moves to another level."""


class Unmeasured:
    """A schedule that does not depend on measured service: one level per priority, or first come, first served."""

    starvation_s, measures, keeps_work = math.inf, False, False

    def __init__(self, *, is_by_priority: bool) -> None:
        self.is_by_priority = self.is_by_deadline = is_by_priority

    def level(self, scheduling: SchedulingParams, prompt_tokens: int) -> int:  # noqa: ARG002
        """Return the priority, or the only level."""
        return scheduling.priority if self.is_by_priority else 0

    def charge(self, standings: Iterable[Standing], seconds: float, prompt_tokens: int) -> bool:  # noqa: ARG002
        """Return False: levels never change."""
        return False

    def left_s(self, standing: Standing) -> float:  # noqa: ARG002
        """Return infinity."""
        return math.inf


def make_policy(options: ScheduleOptions) -> Policy:
    """Return the schedule that `options` name."""
    if options.name == "mlfq":
        return FeedbackQueue(options)
    return Unmeasured(is_by_priority=options.name == "priority")


_MEMORY = 0.99  # weight of earlier measurements when a step adds a new one


class FeedbackQueue:
    """Levels with growing quanta; a request that has used up its level's quantum moves down one level.

    Skip-join: a request starts on the first level whose quantum covers its prompt, by the measured time of earlier
    prompts. Preemption is frequent, so it happens only if the host can keep the request's cache.
    """

    is_by_deadline, measures, keeps_work = True, True, True

    def __init__(self, options: ScheduleOptions) -> None:
        self.starvation_s = options.starvation_s
        self._quanta = [options.quantum_s * options.ratio**level for level in range(options.levels - 1)]
        self._prompt_s, self._prompt_tokens = 0.0, 0.0

    def level(self, scheduling: SchedulingParams, prompt_tokens: int) -> int:  # noqa: ARG002
        """Return the highest level whose quantum covers the prompt; the last level if none does."""
        needed_s = prompt_tokens * self._prompt_s / self._prompt_tokens if self._prompt_tokens else 0.0
        return next((level for level, quantum in enumerate(self._quanta) if needed_s <= quantum), len(self._quanta))

    def charge(self, standings: Iterable[Standing], seconds: float, prompt_tokens: int) -> bool:
        """Charge a step to the quanta of the requests it served. The last level has no quantum."""
        if prompt_tokens:
            self._prompt_s = _MEMORY * self._prompt_s + seconds
            self._prompt_tokens = _MEMORY * self._prompt_tokens + prompt_tokens
        has_moved = False
        for standing in standings:
            standing.used_s += seconds
            if self.left_s(standing) <= 0:
                standing.level, standing.used_s, standing.is_promoted = standing.level + 1, 0.0, False
                has_moved = True
        return has_moved

    def left_s(self, standing: Standing) -> float:
        """Return the service left, in seconds, before a request moves down.

        Each promotion doubles a promoted request's quantum. It therefore finishes even if every preemption loses its
        work, and two starved requests cannot evict each other forever.
        """
        if standing.level >= len(self._quanta):
            return math.inf
        return (
            self._quanta[standing.level] * (2.0**standing.promotions if standing.is_promoted else 1.0) - standing.used_s
        )


PROMPT_TOKEN, OUTPUT_TOKEN = 1.0, 2.0
"""Cost of a token in service units, as in Virtual Token Counter (https://arxiv.org/abs/2401.00588)."""
_MOST_IDLE = 4096  # counters kept of users without a request


class Shares:
    """Service per user, divided by the user's weight; the user with the least is served next.

    Idle users save up nothing: after a break, a user starts no lower than those who have been waiting.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._other = weights.get(ANYONE, 1.0)
        self._counters: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        self._last = 0.0

    def add(self, user: str) -> None:
        """Record that a request of the user waits."""
        if not self._waiting[user]:
            least = min((self._counters[other] for other in self._waiting if other != user), default=self._last)
            self._counters[user] = max(self._counters.get(user, 0.0), least)
        self._waiting[user] += 1

    def remove(self, user: str) -> None:
        """Record that a request of the user no longer waits."""
        self._waiting[user] -= 1
        if not self._waiting[user]:
            del self._waiting[user]
            self._last = self._counters[user]
            if len(self._counters) > _MOST_IDLE + len(self._waiting):
                self._forget()

    def charge(self, user: str, tokens: float) -> None:
        """Charge a user for weighted tokens."""
        weight = self._weights.get(user, self._other)
        self._counters[user] = self._counters.get(user, 0.0) + tokens / weight

    def used(self, user: str) -> float:
        """Return a user's counter."""
        return self._counters.get(user, 0.0)

    def _forget(self) -> None:
        """Drop the counters of idle users who would start just as high without one."""
        least = min((self._counters[user] for user in self._waiting), default=self._last)
        self._counters = {user: used for user, used in self._counters.items() if user in self._waiting or used > least}
