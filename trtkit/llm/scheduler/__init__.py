"""Which request runs next: first come first served, by priority, or by a multi-level feedback queue; and fairly."""

from trtkit.llm.scheduler.options import (
    DEFAULT_SCHEDULE,
    DEFAULT_SCHEDULING,
    ScheduleOptions,
    SchedulingParams,
)
from trtkit.llm.scheduler.policy import Standing
from trtkit.llm.scheduler.queue import RequestQueue, Service

__all__ = [
    "DEFAULT_SCHEDULE",
    "DEFAULT_SCHEDULING",
    "RequestQueue",
    "ScheduleOptions",
    "SchedulingParams",
    "Service",
    "Standing",
]
