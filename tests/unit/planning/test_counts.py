"""The function through eight corners is the one that made them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtkit.planning.counts import Multilinear, Point, fit, fit_batch, sample_points, total

coefficients = st.tuples(*[st.integers(-(10**15), 10**15)] * 8)
points = st.tuples(*[st.integers(0, 10**6)] * 3)


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(coefficients, st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 999)), st.integers(1, 64))
def test_fit_finds_the_coefficients_from_any_corners(c: tuple[int, ...], first: Point, step: int) -> None:
    made = Multilinear(c)
    corners = sample_points(first, step)
    assert len(set(corners)) == 8
    assert fit({point: made.at(point) for point in corners}) == made


@given(coefficients, points)
def test_value_is_the_sum_over_all_products_of_the_three_sizes(c: tuple[int, ...], point: Point) -> None:
    B, S, T = point
    by_power = dict(zip(product((0, 1), repeat=3), c, strict=True))
    assert Multilinear(c).at(point) == sum(v * B**b * S**s * T**t for (b, s, t), v in by_power.items())


@given(coefficients, coefficients, points)
def test_sums_are_sums_of_values(a: tuple[int, ...], b: tuple[int, ...], point: Point) -> None:
    first, second = Multilinear(a), Multilinear(b)
    assert (first + second).at(point) == first.at(point) + second.at(point) == total([first, second]).at(point)


def test_a_square_is_noticed_at_a_ninth_point() -> None:
    corners = sample_points((1, 1, 8), 8)
    found = fit({(B, S, T): T * T for B, S, T in corners})
    assert found.at((3, 5, 32)) != 32 * 32


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12), st.integers(1, 8), st.integers(1, 64))
def test_a_line_in_the_batch(constant: int, slope: int, low: int, step: int) -> None:
    found = fit_batch({batch: constant + slope * batch for batch in (low, low + step)})
    assert found.at((77, 0, 0)) == constant + slope * 77


def test_what_is_no_line_in_the_batch_is_not_made_one() -> None:
    with pytest.raises(AssertionError, match="not linear in the batch"):
        fit_batch({1: 1, 3: 4})
