"""Percentiles and summaries against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

from trtkit.benchmarking.statistics import PERCENTILES, distribution, median, percentile, ratio_of_medians
from trtkit.jobs.json_form import to_json

values = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60)


@given(values, st.floats(0, 100))
def test_percentiles_are_numpys(samples: list[float], percent: float) -> None:
    assert percentile(samples, percent) == pytest.approx(np.percentile(samples, percent), rel=1e-9, abs=1e-6)


@given(values)
def test_a_distribution_is_numpys(samples: list[float]) -> None:
    statistics = to_json(distribution("ms", samples))
    expected = {f"p{each}": np.percentile(samples, each) for each in PERCENTILES}
    expected |= {"avg": np.mean(samples), "std": np.std(samples), "sum": np.sum(samples), "count": len(samples)}
    expected |= {"min": min(samples), "max": max(samples)}
    assert statistics.pop("unit") == "ms"
    assert statistics == {name: pytest.approx(value, rel=1e-6, abs=1e-4) for name, value in expected.items()}


@given(values, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples: list[float], random: object) -> None:
    shuffled = list(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert median(shuffled) == median(samples)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def drawn(seed: int, count: int, scale: float = 1.0) -> list[float]:
    """Latencies with a tail: log-normal around `scale`."""
    found: list[float] = (scale * np.random.default_rng(seed).lognormal(0, 0.1, count)).tolist()
    return found


def slow_spells(seed: int, count: int, scale: float = 1.0) -> list[float]:
    """Latencies of a machine that is slow for a while: neighbours are alike (AR(1), 0.9)."""
    generator = np.random.default_rng(seed)
    state, found = 0.0, []
    for _ in range(count):
        state = 0.9 * state + generator.normal(0, 0.05)
        found.append(scale * float(np.exp(state)))
    return found


def holds(samples: object, truth: float, block: int | None, repeats: int = 150) -> float:
    """Return how often the interval holds the true ratio."""
    hits = 0
    for seed in range(repeats):
        above, below = samples(2 * seed, 100, truth), samples(2 * seed + 1, 100)  # type: ignore[operator]
        found = ratio_of_medians(above, below, block=block, seed=seed)
        hits += found.low <= truth <= found.high
    return hits / repeats


def test_the_interval_is_scipys_where_samples_are_independent() -> None:
    above, below = np.array(drawn(1, 80, 1.2)), np.array(drawn(2, 80))

    def ratio(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.median(first, axis=axis) / np.median(second, axis=axis)

    expected = bootstrap((above, below), ratio, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    found = ratio_of_medians(above.tolist(), below.tolist(), block=1)
    assert found.ratio == pytest.approx(np.median(above) / np.median(below))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=0.01)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    assert 0.9 <= holds(drawn, 1.1, block=1) <= 1.0
    assert holds(drawn, 1.1, block=None) >= 0.88


def test_blocks_promise_less_where_neighbours_are_alike() -> None:
    single, blocks = holds(slow_spells, 1.1, block=1), holds(slow_spells, 1.1, block=20)
    assert blocks > single + 0.15


def test_pairs_cancel_what_slows_both_down() -> None:
    spells = np.array(slow_spells(3, 60))
    above, below = (1.1 * spells).tolist(), spells.tolist()
    paired = ratio_of_medians(above, below, is_paired=True)
    assert (paired.low, paired.high) == (pytest.approx(1.1), pytest.approx(1.1))
    alone = ratio_of_medians(above, below)
    assert alone.high - alone.low > 0.02


def test_the_same_seed_gives_the_same_interval() -> None:
    assert ratio_of_medians(drawn(1, 9), drawn(2, 7)) == ratio_of_medians(drawn(1, 9), drawn(2, 7))


@pytest.mark.parametrize(
    ("above", "below", "is_paired"), [([], [1.0], False), ([1.0], [], False), ([1.0], [1, 2], True)]
)
def test_what_makes_no_ratio_is_refused(above: list[float], below: list[float], is_paired: bool) -> None:
    with pytest.raises(ValueError, match="make no ratio"):
        ratio_of_medians(above, below, is_paired=is_paired)
