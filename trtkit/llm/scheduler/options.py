"""Options of the scheduler: schedules, shared budgets, and a request's own priority, user and deadline."""

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
"""In `shares`: every user who is not listed."""


@dataclass(frozen=True)
class SchedulingParams:
    """A request's scheduling settings.

    priority: lower runs first. user: whose share it is charged to. deadline_s: seconds after its arrival by which it
    must get a slot, or it ends with an error; among otherwise equal requests the earliest deadline comes first.
    """

    priority: int = 0
    user: str = ""
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Raise RequestError for a deadline that has passed already."""
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise RequestError(f"a deadline of {self.deadline_s:g} s has passed", "deadline_s", "give more than 0")


DEFAULT_SCHEDULING = SchedulingParams()
"""Settings of requests that state none."""


@dataclass(frozen=True)
class ScheduleOptions:
    """How requests are scheduled.

    fcfs: by arrival. priority: by priority, then deadline, then arrival; a higher priority preempts a lower one.
    mlfq: short answers first without knowing their lengths, by FastServe's skip-join multi-level feedback queue
    (https://arxiv.org/abs/2305.05920); priorities are ignored.

    shares: weights of users by name, `*` for all others; None if users do not matter. For mlfq: quantum_s, seconds of
    service in the highest of `levels` queues; ratio, of a queue's quantum to that of the queue above it;
    starvation_s, time without service after which a request moves to the highest queue.
    """

    name: ScheduleName = "priority"
    shares: Mapping[str, float] | None = None
    quantum_s: float = 0.5
    ratio: float = 2.0
    levels: int = 8
    starvation_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise RequestError for an unknown schedule or a value out of range."""
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
        """Return schedule options, also from a schedule's name. shares: replace those of `schedule`."""
        options = schedule if isinstance(schedule, ScheduleOptions) else cls(schedule)
        return options if shares is None else replace(options, shares=dict(shares))


DEFAULT_SCHEDULE = ScheduleOptions()
"""Schedule by priority."""


@dataclass(frozen=True, kw_only=True)
class SharingOptions:
    """How requests share a machine.

    token_budget: new tokens per step, decoding and prompts together; None for as many as a call takes of one slot.
    max_queue: limit on waiting requests; None if unlimited. min_shared_tokens: the shortest prefix worth sharing.
    snapshot_tokens: interval at which recurrent models save states while they read a prompt.
    most_imported_bytes: host memory for prefixes that other engines computed.
    host_cache_bytes: host memory for caches evicted from the device: preempted requests first, then prompt prefixes.
    host_block_tokens: tokens per block of a linear cache on the host; paged caches keep their pages.
    cache_folder: files that extend host memory and outlive the engine.
    in_blocks: requests start together once all earlier ones have ended, and one step reads all their prompts; for
    decoders that load all weights in every call.
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

    max_chunk: limit on new tokens of a slot in one call. guesses: draft tokens that a decoding slot may write after its
    last one. is_packed: whether prompt chunks share the calls of decoding slots. token_tile: tokens that such a call
    computes together; the last tile may have idle ones. copies_in_background: whether steps run while blocks are
    copied to the host and back. shares_prefixes: whether requests find prefixes that others have cached; otherwise
    only their own work after a preemption.
    """

    slots: int
    max_length: int
    max_chunk: int
    guesses: int = 0
    is_packed: bool = False
    token_tile: int = 1
    copies_in_background: bool = False
    shares_prefixes: bool = True
