"""Due times of requests: at a constant rate, as a Poisson process, or replayed from a trace."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

Pattern = Literal["poisson", "constant"]


def poisson_arrivals(rate: float, count: int, seed: int = 0) -> list[float]:
    """Return `count` due times in seconds with exponential gaps of mean 1 / rate; the first is 0.

    rate: requests per second.
    """
    _check(rate)
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(0, count - 1))
    return [0.0, *np.cumsum(gaps).tolist()][:count]


def constant_arrivals(rate: float, count: int) -> list[float]:
    """Return `count` due times in seconds, 1 / rate apart."""
    _check(rate)
    return [index / rate for index in range(count)]


def replayed_arrivals(timestamps_ms: Sequence[float], speed: float = 1.0) -> list[float]:
    """Return a trace's due times in seconds since its first request, sped up by the factor `speed`."""
    _check(speed)
    first = min(timestamps_ms, default=0.0)
    return [(timestamp - first) / 1000 / speed for timestamp in timestamps_ms]


def _check(rate: float) -> None:
    if not rate > 0:
        raise ValueError(f"the rate must be above 0; got {rate}")
