"""Arrival schedules of requests: at a concurrency, at a rate, or as in a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.benchmarking.arrivals import constant_arrivals, poisson_arrivals, replayed_arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.benchmarking.request import Load
    from trtkit.benchmarking.workload import TraceRow


@dataclass(frozen=True)
class Schedule:
    """One case of a load.

    concurrency: concurrent requests of a closed loop. due_s: due times of an open loop, one per request.
    """

    name: str
    concurrency: int | None = None
    due_s: tuple[float, ...] = ()


def schedules_of(load: Load, count: int, rows: Sequence[TraceRow] = ()) -> list[Schedule]:
    """Return a case of `count` requests for each concurrency or rate, or that of a trace; by default one at a time."""
    if rows:
        name = "trace" if load.speed == 1 else f"trace, {load.speed:g} times as fast"
        return [Schedule(name, due_s=tuple(replayed_arrivals([row.timestamp_ms for row in rows], load.speed)))]
    if load.request_rate:
        return [_rate_schedule(rate, count, load) for rate in dict.fromkeys(load.request_rate)]
    return [Schedule(f"concurrency {level}", level) for level in dict.fromkeys(load.concurrency or (1,))]


def _rate_schedule(rate: float, count: int, load: Load) -> Schedule:
    """Return an open loop of `count` requests at a rate, in requests per second."""
    is_random = load.arrivals == "poisson"
    due = poisson_arrivals(rate, count, load.seed) if is_random else constant_arrivals(rate, count)
    return Schedule(f"{rate:g} requests/s, {load.arrivals}", due_s=tuple(due))
