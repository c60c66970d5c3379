"""Percentiles and summaries against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.benchmarking.statistics import PERCENTILES, distribution, median, percentile
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
