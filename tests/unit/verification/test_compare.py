from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from trtkit.verification.compare import compare, worst

NAN, INF = math.nan, math.inf


def array(*values: float) -> Any:
    return np.array(values, np.float32)


def test_measures_are_those_of_a_worked_example() -> None:
    """a-b is (0, 1, -1, 2): ||a-b|| = sqrt(6), ||b|| = 5, a.b = 33, ||a|| = sqrt(51)."""
    found = compare(array(3, 5, -1, 4), array(3, 4, 0, 2 - 2))
    assert found.relative_rms_error == pytest.approx(math.sqrt(1 + 1 + 16) / 5)
    assert found.max_abs_error == 4
    assert found.max_rel_error == pytest.approx(0.25)
    assert found.cosine == pytest.approx((9 + 20) / (5 * math.sqrt(51)))
    assert found.problem == ""


def test_equal_arrays_have_no_error() -> None:
    found = compare(array(1, -2, 3), array(1, -2, 3))
    assert (found.relative_rms_error, found.max_abs_error, found.max_rel_error) == (0, 0, 0)
    assert found.cosine == pytest.approx(1)


@pytest.mark.parametrize(
    ("result", "reference"),
    [
        (array(1, NAN), array(1, 2)),
        (array(1, 2), array(1, NAN)),
        (array(1, INF), array(1, 2)),
        (array(1, 2), array(1, INF)),
        (array(1, -INF), array(1, INF)),
    ],
)
def test_what_is_not_finite_passes_only_where_equal(result: Any, reference: Any) -> None:
    found = compare(result, reference)
    assert found.relative_rms_error == INF
    assert found.cosine == 0
    assert "values are not finite" in found.problem


def test_equal_infinities_are_equal_and_the_rest_is_measured() -> None:
    found = compare(array(INF, -INF, 3), array(INF, -INF, 4))
    assert found.relative_rms_error == pytest.approx(0.25)
    assert found.problem == ""


def test_equal_nans_are_counted_and_the_rest_is_measured() -> None:
    found = compare(array(NAN, NAN, 3), array(NAN, NAN, 4))
    assert found.relative_rms_error == pytest.approx(0.25)
    assert (found.equal_nans, found.values, found.problem) == (2, 3, "")


def test_the_message_counts_what_is_not_finite() -> None:
    found = compare(array(1, NAN, INF), array(1, 2, INF))
    assert found.problem == "2 of 3 values are not finite; the reference has 1"


def test_shapes_must_be_equal_though_they_would_broadcast() -> None:
    found = compare(np.zeros((1, 3)), np.zeros((2, 3)))
    assert found.relative_rms_error == INF
    assert found.problem == "shape [1, 3] is not the reference's [2, 3]"


def test_a_reference_of_zeros_is_compared_by_the_rms_itself() -> None:
    assert compare(array(3, 4), array(0, 0)).relative_rms_error == pytest.approx(5 / math.sqrt(2))
    assert compare(array(0, 0), array(0, 0)).relative_rms_error == 0
    assert compare(array(0, 0), array(0, 0)).cosine == 1


def test_empty_arrays_are_equal() -> None:
    assert compare(np.zeros((0, 3)), np.zeros((0, 3))).relative_rms_error == 0


def test_sixteen_bit_values_are_compared_without_overflow() -> None:
    huge = np.full(1000, 60000, np.float16)
    assert compare(huge, huge).relative_rms_error == 0


def test_the_worst_of_each_measure_is_kept() -> None:
    near, far = compare(array(1, 2), array(1, 2)), compare(array(1, NAN), array(1, 2))
    found = worst([near, far, near])
    assert found.relative_rms_error == INF
    assert found.cosine == 0
    assert found.problem == far.problem


FLOATS = numpy_st.arrays(np.float32, 8, elements=st.floats(-1e6, 1e6, width=32))


@given(FLOATS, FLOATS, st.floats(0.0078125, 128, width=32))
def test_scaling_both_sides_changes_no_relative_measure(a: Any, b: Any, factor: float) -> None:
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not b.any() or np.abs(b[b != 0]).min() < 1e-3:
        return
    before, after = compare(a, b), compare(a * factor, b * factor)
    assert after.relative_rms_error == pytest.approx(before.relative_rms_error)
    assert after.max_abs_error == pytest.approx(before.max_abs_error * factor)
    assert after.cosine == pytest.approx(before.cosine, abs=1e-9)


@given(FLOATS, FLOATS)
def test_there_is_no_error_only_between_equals(a: Any, b: Any) -> None:
    assert (compare(a, b).relative_rms_error == 0) == np.array_equal(a, b)
