"""Summaries of samples: percentiles by linear interpolation, as NumPy's default and AIPerf compute them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
"""What a summary names `p1` to `p99`."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of `values` lie, interpolated between neighbours.

    percent: 0 to 100. Raises ValueError for no values.
    """
    return _of_sorted(sorted(values), percent)


def median(values: Sequence[float]) -> float:
    """Return the 50th percentile."""
    return percentile(values, 50)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return average, percentiles, extremes, population standard deviation, count and sum, by AIPerf's names.

    Empty where there are no values.
    """
    if not values:
        return {}
    ordered, total = sorted(values), math.fsum(values)
    average = total / len(ordered)
    deviation = math.sqrt(math.fsum((value - average) ** 2 for value in ordered) / len(ordered))
    return {
        "avg": average,
        **{f"p{percent}": _of_sorted(ordered, percent) for percent in PERCENTILES},
        "min": ordered[0],
        "max": ordered[-1],
        "std": deviation,
        "count": len(ordered),
        "sum": total,
    }


def _of_sorted(ordered: Sequence[float], percent: float) -> float:
    if not ordered:
        raise ValueError("no values")
    place = (len(ordered) - 1) * percent / 100
    low = min(math.floor(place), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
