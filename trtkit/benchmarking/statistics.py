"""Summaries of samples: percentiles by linear interpolation, as NumPy's default and AIPerf compute them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
"""Those of a distribution: `p1` to `p99`."""


@dataclass(frozen=True)
class Total:
    """A figure of a whole load."""

    unit: str
    avg: float


@dataclass(frozen=True)
class SampleStatistics(Total):
    """Statistics of samples, by AIPerf's names. std: the population's standard deviation."""

    p1: float
    p5: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    min: float
    max: float
    std: float
    count: int
    sum: float


Metric = SampleStatistics | Total


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of `values` lie, interpolated between neighbours.

    percent: 0 to 100. Raises ValueError for no values.
    """
    return _of_sorted(sorted(values), percent)


def median(values: Sequence[float]) -> float:
    """Return the 50th percentile."""
    return percentile(values, 50)


def distribution(unit: str, values: Sequence[float]) -> SampleStatistics:
    """Return the statistics of at least one value."""
    ordered, total = sorted(values), math.fsum(values)
    average = total / len(ordered)
    deviation = math.sqrt(math.fsum((value - average) ** 2 for value in ordered) / len(ordered))
    return SampleStatistics(
        unit=unit,
        avg=average,
        **{f"p{percent}": _of_sorted(ordered, percent) for percent in PERCENTILES},
        min=ordered[0],
        max=ordered[-1],
        std=deviation,
        count=len(ordered),
        sum=total,
    )


def _of_sorted(ordered: Sequence[float], percent: float) -> float:
    if not ordered:
        raise ValueError("no values")
    position = (len(ordered) - 1) * percent / 100
    low = min(math.floor(position), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
