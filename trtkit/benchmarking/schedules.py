"""How requests come: so many at once, at a rate, or as a trace has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtkit.benchmarking.arrivals import constant_arrivals, poisson_arrivals, replayed_arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.benchmarking.traces import TraceRow

Pattern = Literal["poisson", "constant"]


@dataclass(frozen=True)
class Schedule:
    """One case of a load.

    concurrency: requests under way at once, of a closed loop. due_s: when each is due, of an open loop; it has as many
    as there are requests.
    """

    name: str
    concurrency: int | None = None
    due_s: tuple[float, ...] = ()


def concurrency_schedules(levels: Sequence[int]) -> list[Schedule]:
    """Return a closed loop for each number of requests at once."""
    return [Schedule(f"concurrency {level}", level) for level in dict.fromkeys(levels)]


def rate_schedules(rates: Sequence[float], count: int, pattern: Pattern, seed: int) -> list[Schedule]:
    """Return an open loop of `count` requests for each rate, in requests a second."""
    made = []
    for rate in dict.fromkeys(rates):
        due = poisson_arrivals(rate, count, seed) if pattern == "poisson" else constant_arrivals(rate, count)
        made.append(Schedule(f"{rate:g} requests/s, {pattern}", due_s=tuple(due)))
    return made


def trace_schedule(rows: Sequence[TraceRow], speed: float) -> Schedule:
    """Return an open loop with a trace's own times, `speed` times as fast."""
    name = "trace" if speed == 1 else f"trace, {speed:g} times as fast"
    return Schedule(name, due_s=tuple(replayed_arrivals([row.timestamp_ms for row in rows], speed)))
