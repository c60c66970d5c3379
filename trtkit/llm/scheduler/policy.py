"""Schedules: first come first served, by priority, a multi-level feedback queue; and shares of users."""

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
    """Where a request stands. Times are those of the engine's clock, in seconds.

    arrival: a number, in order. level: smaller is sooner; requests of one level do not give way to each other.
    due_s: when it has to begin. used_s: of its level's quantum. served_s: when it was last served, or arrived.
    is_promoted: it was not served for too long, so it comes first on its level. promotions: how often that happened.
    has_begun: whether it ever had a slot.
    is_by_deadline: whether the earliest deadline comes first on a level.
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
        """What requests are sorted by: level, promoted ones first, deadline, arrival."""
        is_due = self.is_by_deadline and not self.is_promoted
        return (self.level, not self.is_promoted, self.due_s if is_due else math.inf, self.arrival)

    def promote(self) -> None:
        """Move to the highest level, before all others there."""
        self.level, self.used_s, self.is_promoted = 0, 0.0, True
        self.promotions += 1


class Policy(Protocol):
    """A schedule. starvation_s: a request that is not served for so long is promoted; infinite for never.

    is_by_deadline: whether the earliest deadline goes first on a level. measures: whether it needs to know how long
    steps take. keeps_work: whether a request gives way only if the host has room for what it has computed.
    """

    starvation_s: float
    is_by_deadline: bool
    measures: bool
    keeps_work: bool

    def level(self, scheduling: SchedulingParams, prompt_tokens: int) -> int:
        """Return the level that a request starts on."""

    def charge(self, standings: Iterable[Standing], seconds: float, prompt_tokens: int) -> bool:
        """Note that requests were served by a step; return whether one moved to another level."""

    def left_s(self, standing: Standing) -> float:
        """Return the seconds of service after which a request moves to another level."""


class Unmeasured:
    """A schedule by what requests say, not by what they use: a level for each priority, or first come, first served."""

    starvation_s, measures, keeps_work = math.inf, False, False

    def __init__(self, *, is_by_priority: bool) -> None:
        self.is_by_priority = self.is_by_deadline = is_by_priority

    def level(self, scheduling: SchedulingParams, prompt_tokens: int) -> int:  # noqa: ARG002
        """Return the priority, or the only level."""
        return scheduling.priority if self.is_by_priority else 0

    def charge(self, standings: Iterable[Standing], seconds: float, prompt_tokens: int) -> bool:  # noqa: ARG002
        """Return False: nothing depends on it."""
        return False

    def left_s(self, standing: Standing) -> float:  # noqa: ARG002
        """Return infinity."""
        return math.inf


def make_policy(options: ScheduleOptions) -> Policy:
    """Return the schedule of a name."""
    if options.name == "mlfq":
        return FeedbackQueue(options)
    return Unmeasured(is_by_priority=options.name == "priority")


_MEMORY = 0.99  # share of what was measured that a step's measurement leaves


class FeedbackQueue:
    """Levels with growing quanta. A request that used up its level's quantum moves one down.

    It does not start at the top, but on the first level whose quantum covers its prompt: the time for that is known
    from prompts before it. Requests often give way, so none does whose work would be lost.
    """

    is_by_deadline, measures, keeps_work = True, True, True

    def __init__(self, options: ScheduleOptions) -> None:
        self.starvation_s = options.starvation_s
        self._quanta = [options.quantum_s * options.ratio**level for level in range(options.levels - 1)]
        self._prompt_s, self._prompt_tokens = 0.0, 0.0

    def level(self, scheduling: SchedulingParams, prompt_tokens: int) -> int:  # noqa: ARG002
        """Return the highest level whose quantum covers the prompt, the last if none does."""
        needed_s = prompt_tokens * self._prompt_s / self._prompt_tokens if self._prompt_tokens else 0.0
        return next((level for level, quantum in enumerate(self._quanta) if needed_s <= quantum), len(self._quanta))

    def charge(self, standings: Iterable[Standing], seconds: float, prompt_tokens: int) -> bool:
        """Count a step against the quanta of those it served. The last level has no quantum."""
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
        """Return the seconds of service after which a request moves down.

        Each promotion doubles what a promoted request gets. So it ends even if each time it gives way its work is lost,
        and two of them cannot take each other's slot forever.
        """
        if standing.level >= len(self._quanta):
            return math.inf
        return (
            self._quanta[standing.level] * (2.0**standing.promotions if standing.is_promoted else 1.0) - standing.used_s
        )


PROMPT_TOKEN, OUTPUT_TOKEN = 1.0, 2.0
"""What a token counts, as in the paper."""
_MOST_IDLE = 4096  # users without a request whose counters are kept


class Shares:
    """What each user was served, divided by the user's weight: who has the least is next.

    Service is not saved up: who comes after a break starts no lower than those who waited meanwhile.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._other = weights.get(ANYONE, 1.0)
        self._counters: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        self._last = 0.0

    def add(self, user: str) -> None:
        """Note that a request of a user waits."""
        if not self._waiting[user]:
            least = min((self._counters[other] for other in self._waiting if other != user), default=self._last)
            self._counters[user] = max(self._counters.get(user, 0.0), least)
        self._waiting[user] += 1

    def remove(self, user: str) -> None:
        """Note that a request of a user waits no longer."""
        self._waiting[user] -= 1
        if not self._waiting[user]:
            del self._waiting[user]
            self._last = self._counters[user]
            if len(self._counters) > _MOST_IDLE + len(self._waiting):
                self._forget()

    def charge(self, user: str, tokens: float) -> None:
        """Count weighted tokens that a user was served."""
        weight = self._weights.get(user, self._other)
        self._counters[user] = self._counters.get(user, 0.0) + tokens / weight

    def used(self, user: str) -> float:
        """Return a user's counter."""
        return self._counters.get(user, 0.0)

    def _forget(self) -> None:
        """Drop the counters of users who would start no lower without them."""
        least = min((self._counters[user] for user in self._waiting), default=self._last)
        self._counters = {user: used for user, used in self._counters.items() if user in self._waiting or used > least}
