"""Summaries of samples: percentiles by linear interpolation, and bootstrap intervals of ratios of medians."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
"""Percentiles of a distribution: `p1` to `p99`."""


@dataclass(frozen=True)
class Total:
    """A figure of a whole load."""

    unit: str
    avg: float


@dataclass(frozen=True)
class SampleStatistics(Total):
    """Statistics of samples, with AIPerf's names. std: the population's standard deviation."""

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
    """Return the value below which `percent` of `values` lie, interpolated between neighbors.

    percent: 0 to 100. Raises ValueError for no values.
    """
    return _of_sorted(sorted(values), percent)


def median(values: Sequence[float]) -> float:
    """Return the 50th percentile."""
    return percentile(values, 50)


def distribution(unit: str, values: Sequence[float]) -> SampleStatistics:
    """Return the statistics of one or more values."""
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


RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A ratio of medians, and its confidence interval."""

    ratio: float
    low: float
    high: float
    confidence: float = CONFIDENCE


def ratio_of_medians(
    numerator: Sequence[float],
    denominator: Sequence[float],
    *,
    is_paired: bool = False,
    block: int | None = None,
    seed: int = 0,
) -> Interval:
    """Return the ratio of two medians with its bootstrap interval.

    is_paired: whether sample i of both was taken in the same round, so that both are drawn together and a slow round
    cancels out. block: number of neighbors drawn together. Raises ValueError if samples are missing or pairs do not
    match.

    A machine is slow for a while rather than for one sample. Whole blocks of neighbors are therefore drawn (the
    circular block bootstrap, Politis and Romano 1992), of about the cube root of the sample count: single samples would
    give intervals that are too narrow.
    """
    above, below = np.asarray(numerator, float), np.asarray(denominator, float)
    if not above.size or not below.size or (is_paired and above.size != below.size):
        raise ValueError(f"{above.size} and {below.size} samples make no ratio")
    generator = np.random.default_rng(seed)
    drawn = _indices(above.size, block, generator)
    other = drawn if is_paired else _indices(below.size, block, generator)
    ratios = np.median(above[drawn], axis=1) / np.median(below[other], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Interval(float(np.median(above) / np.median(below)), float(low), float(high))


def _indices(count: int, block: int | None, generator: np.random.Generator) -> Array:
    """Return indices [RESAMPLES, count] in blocks of neighbors; the last sample's neighbor is the first one."""
    length = min(count, block or max(1, round(count ** (1 / 3))))
    starts = generator.integers(0, count, (RESAMPLES, -(-count // length)))
    indices: Array = (starts[:, :, None] + np.arange(length)) % count
    return indices.reshape(RESAMPLES, -1)[:, :count]
