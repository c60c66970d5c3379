"""What a schedule decides: the level that a request starts on, and when it moves to another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from trtkit.llm.scheduler.mlfq import FeedbackQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtkit.llm.scheduler.options import ScheduleOptions, SchedulingParams
    from trtkit.llm.scheduler.turn import Turn


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

    def charge(self, turns: Iterable[Turn], seconds: float, prompt_tokens: int) -> bool:
        """Note that requests were served by a step; return whether one moved to another level."""

    def left_s(self, turn: Turn) -> float:
        """Return the seconds of service after which a request moves to another level."""


class _Unmeasured:
    """A schedule by what requests say, not by what they use."""

    starvation_s, measures, keeps_work = math.inf, False, False

    def charge(self, turns: Iterable[Turn], seconds: float, prompt_tokens: int) -> bool:  # noqa: ARG002
        """Return False: nothing depends on it."""
        return False

    def left_s(self, turn: Turn) -> float:  # noqa: ARG002
        """Return infinity."""
        return math.inf


class FirstCome(_Unmeasured):
    """First come, first served."""

    is_by_deadline = False

    def level(self, scheduling: SchedulingParams, prompt_tokens: int) -> int:  # noqa: ARG002
        """Return the only level."""
        return 0


class ByPriority(_Unmeasured):
    """A level for each priority."""

    is_by_deadline = True

    def level(self, scheduling: SchedulingParams, prompt_tokens: int) -> int:  # noqa: ARG002
        """Return the priority."""
        return scheduling.priority


def make_policy(options: ScheduleOptions) -> Policy:
    """Return the schedule of a name."""
    if options.name == "mlfq":
        return FeedbackQueue(options)
    return FirstCome() if options.name == "fcfs" else ByPriority()
