"""How requests come: so many at once, at a constant or random rate, or as a trace has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from trtkit.benchmarking.request import Load
    from trtkit.benchmarking.workload import TraceRow


Pattern = Literal["poisson", "constant"]


def poisson_arrivals(rate: float, count: int, seed: int = 0) -> list[float]:
    """Return `count` due times in seconds whose gaps are exponential with mean 1 / rate; the first is at 0.

    rate: requests a second.
    """
    _check(rate)
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(0, count - 1))
    return [0.0, *np.cumsum(gaps).tolist()][:count]


def constant_arrivals(rate: float, count: int) -> list[float]:
    """Return `count` due times in seconds, 1 / rate apart."""
    _check(rate)
    return [index / rate for index in range(count)]


def replayed_arrivals(timestamps_ms: Sequence[float], speed: float = 1.0) -> list[float]:
    """Return a trace's due times in seconds from its first request, `speed` times as fast."""
    _check(speed)
    first = min(timestamps_ms, default=0.0)
    return [(timestamp - first) / 1000 / speed for timestamp in timestamps_ms]


def _check(rate: float) -> None:
    if not rate > 0:
        raise ValueError(f"the rate must be above 0; got {rate}")


@dataclass(frozen=True)
class Schedule:
    """One case of a load.

    concurrency: requests under way at once, of a closed loop. due_s: when each is due, of an open loop; it has as many
    as there are requests.
    """

    name: str
    concurrency: int | None = None
    due_s: tuple[float, ...] = ()


def schedules_of(load: Load, count: int, rows: Sequence[TraceRow] = ()) -> list[Schedule]:
    """Return a case for each concurrency or rate of `count` requests, or that of a trace; by default one at a time."""
    if rows:
        name = "trace" if load.speed == 1 else f"trace, {load.speed:g} times as fast"
        return [Schedule(name, due_s=tuple(replayed_arrivals([row.timestamp_ms for row in rows], load.speed)))]
    if load.request_rate:
        return [_rate_schedule(rate, count, load) for rate in dict.fromkeys(load.request_rate)]
    return [Schedule(f"concurrency {level}", level) for level in dict.fromkeys(load.concurrency or (1,))]


def _rate_schedule(rate: float, count: int, load: Load) -> Schedule:
    """Return an open loop of `count` requests at a rate, in requests a second."""
    is_random = load.arrivals == "poisson"
    due = poisson_arrivals(rate, count, load.seed) if is_random else constant_arrivals(rate, count)
    return Schedule(f"{rate:g} requests/s, {load.arrivals}", due_s=tuple(due))
