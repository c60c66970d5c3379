"""Arrivals: a Poisson process by its statistics, constant rates and traces by value."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from trtkit.benchmarking.arrivals import constant_arrivals, poisson_arrivals, replayed_arrivals

RATE, COUNT = 25.0, 20_000


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gaps_are_exponential_and_independent(seed: int) -> None:
    gaps = np.diff(poisson_arrivals(RATE, COUNT, seed))
    assert stats.kstest(gaps, "expon", args=(0, 1 / RATE)).pvalue > 0.01
    assert abs(stats.pearsonr(gaps[:-1], gaps[1:]).statistic) < 3 / np.sqrt(COUNT)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_counts_of_a_second_are_poisson(seed: int) -> None:
    due = np.array(poisson_arrivals(RATE, COUNT, seed))
    counts = np.bincount(due.astype(int))[:-1]
    assert counts.mean() == pytest.approx(RATE, rel=0.03)
    spread = (len(counts) - 1) * counts.var(ddof=1) / counts.mean()  # the index of dispersion, chi-squared
    assert 0.005 < stats.chi2.cdf(spread, len(counts) - 1) < 0.995


def test_a_seed_is_a_load_and_another_one_another() -> None:
    assert poisson_arrivals(3, 50, 7) == poisson_arrivals(3, 50, 7) != poisson_arrivals(3, 50, 8)
    assert poisson_arrivals(3, 4)[0] == 0
    assert poisson_arrivals(3, 0) == []


def test_a_constant_rate_and_a_trace() -> None:
    assert constant_arrivals(4, 3) == [0, 0.25, 0.5]
    assert replayed_arrivals([1000, 1500, 4000]) == [0, 0.5, 3]
    assert replayed_arrivals([1000, 1500, 4000], speed=2) == [0, 0.25, 1.5]
    assert replayed_arrivals([]) == []


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_is_above_zero(rate: float) -> None:
    for make in (poisson_arrivals, constant_arrivals):
        with pytest.raises(ValueError, match="the rate must be above 0"):
            make(rate, 3)
