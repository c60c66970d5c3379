"""Which request runs next: first come first served, by priority, or by a multi-level feedback queue; and fairly."""

from trtkit.runtime.scheduling.options import (
    DEFAULT_SCHEDULE,
    DEFAULT_SCHEDULING,
    ScheduleOptions,
    SchedulingParams,
)
from trtkit.runtime.scheduling.turn import Turn
from trtkit.runtime.scheduling.waiting import Service, Waiting

__all__ = [
    "DEFAULT_SCHEDULE",
    "DEFAULT_SCHEDULING",
    "ScheduleOptions",
    "SchedulingParams",
    "Service",
    "Turn",
    "Waiting",
]
