"""How requests are scheduled and share a machine, and what a request says about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.errors import RequestError
from trtkit.serving_options import SCHEDULES, ScheduleName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.llm.cache.host.files import CacheFolder

ANYONE = "*"
"""In shares: every user who is not named."""


@dataclass(frozen=True)
class SchedulingParams:
    """What a request says about its turn.

    priority: smaller is sooner. user: whose share it counts against. deadline_s: seconds from its arrival by which it
    has to begin; then it ends with an error if it has not. Requests that are equal otherwise begin by deadline.
    """

    priority: int = 0
    user: str = ""
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Raise RequestError for a deadline that no request meets."""
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise RequestError(f"a deadline of {self.deadline_s:g} s has passed", "deadline_s", "give more than 0")


DEFAULT_SCHEDULING = SchedulingParams()
"""Of requests that say nothing about their turn."""


@dataclass(frozen=True)
class ScheduleOptions:
    """How requests are scheduled.

    fcfs: by arrival. priority: by priority, then by deadline and arrival; a request gives way to one of higher
    priority. mlfq: short answers first without knowing lengths, by FastServe's skip-join multi-level feedback queue,
    https://arxiv.org/abs/2305.05920; priorities are ignored.

    shares: weights of users, by name, `*` for all others; None: users do not matter. Of mlfq: quantum_s, seconds of
    service in the highest of `levels` queues; ratio, of each queue's quantum to that of the queue above it;
    starvation_s: a request that was not served for so long moves to the highest queue.
    """

    name: ScheduleName = "priority"
    shares: Mapping[str, float] | None = None
    quantum_s: float = 0.5
    ratio: float = 2.0
    levels: int = 8
    starvation_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise RequestError for options that make no schedule."""
        if self.name not in SCHEDULES:
            raise RequestError(f"`{self.name}` is not a schedule", "schedule", f"use one of {', '.join(SCHEDULES)}")
        for user, weight in (self.shares or {}).items():
            if not 0 < weight < math.inf:
                raise RequestError(f"the share of `{user}` is {weight:g}", "shares", "give a positive number")
        for name, value, is_valid in (
            ("quantum_s", self.quantum_s, self.quantum_s > 0),
            ("ratio", self.ratio, self.ratio >= 1),
            ("levels", self.levels, self.levels >= 1),
            ("starvation_s", self.starvation_s, self.starvation_s > 0),
        ):
            if not is_valid:
                least = "more than 0" if name.endswith("_s") else "1 or more"
                raise RequestError(f"{value:g} is not a value of `{name}`", name, f"give {least}")

    @classmethod
    def of(cls, schedule: ScheduleName | ScheduleOptions, shares: Mapping[str, float] | None = None) -> ScheduleOptions:
        """Return the options of a schedule that may be given by its name. shares: replace those of `schedule`."""
        options = schedule if isinstance(schedule, ScheduleOptions) else cls(schedule)
        return options if shares is None else replace(options, shares=dict(shares))


DEFAULT_SCHEDULE = ScheduleOptions()
"""By priority."""


@dataclass(frozen=True, kw_only=True)
class SharingOptions:
    """How requests share a machine.

    token_budget: new tokens of a step, decoding and prompts together; those of a slot in one call if None.
    max_queue: requests that may wait; None: any number. min_shared_tokens: the shortest prefix worth sharing.
    snapshot_tokens: how far apart the prefixes end that recurrent models save on their way.
    most_imported_bytes: host memory for prefixes that other engines computed.
    host_cache_bytes: host memory for what caches have no room for: preempted requests first, then prefixes of
    prompts. host_block_tokens: how much of a slot's cache it keeps as one; pages are kept as they are.
    cache_folder: for what host memory has, which outlives the engine.
    in_blocks: requests begin together, once those before them have ended, and one step reads all their prompts: for
    decoders to which each call costs a copy of all weights.
    """

    token_budget: int | None = None
    schedule: ScheduleOptions = DEFAULT_SCHEDULE
    max_queue: int | None = None
    min_shared_tokens: int = 16
    snapshot_tokens: int = 512
    most_imported_bytes: int = 1 << 30
    host_cache_bytes: int = 2 << 30
    host_block_tokens: int = 16
    cache_folder: CacheFolder | None = None
    in_blocks: bool = False


@dataclass(frozen=True)
class SchedulerOptions(SharingOptions):
    """What a scheduler shares out: `slots` of `max_length` tokens.

    max_chunk: new tokens of a slot in one call. guesses: tokens that a decoding slot may write after its own, which are
    guessed. is_packed: whether prompts share the calls of decoding slots. token_tile: tokens that such a call
    computes together; its last tile may have idle ones. copies_in_background: whether steps run while blocks are
    copied to the host and back. shares_prefixes: whether requests find what others have cached;
    if not, only their own work after a preemption.
    """

    slots: int
    max_length: int
    max_chunk: int
    guesses: int = 0
    is_packed: bool = False
    token_tile: int = 1
    copies_in_background: bool = False
    shares_prefixes: bool = True
