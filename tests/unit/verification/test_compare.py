"""None"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from trtkit.verification.compare import compare, limits_of, worst
from trtkit.verification.report import ComparisonLimits, WorstSlice

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


FP16 = limits_of(0.02)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_the_worst_slice_of_a_worked_example() -> None:
    """Of channel 1, of RMS 2, one of 100 values is off by 10."""
    reference = np.concatenate([np.full((1, 1, 100), 300.0), np.full((1, 1, 100), 2.0)], 1)
    ours = reference.copy()
    ours[0, 1, 7] += 10
    assert compare(ours, reference).worst_slice == WorstSlice(1, 1, pytest.approx(10 / np.sqrt(100) / 2))


def test_three_scores_beside_64_channels_decide() -> None:
    reference = np.concatenate([normal(4, 64, 20), 0.02 * normal(4, 3, 20)], 1)
    ours = reference.copy()
    ours[:, 64:] *= 1.57
    compared = compare(ours, reference, FP16.floor)
    assert compared.relative_rms_error < 0.02
    assert not compared.is_within(FP16)
    assert compared.worst_slice is not None
    assert (compared.worst_slice.axis, compared.worst_slice.index >= 64) == (1, True)
    assert compared.worst_slice.relative_rms_error == pytest.approx(0.57)


def test_a_batch_is_no_axis_of_slices() -> None:
    reference = normal(2, 8)
    reference[0] *= 1e-3
    ours = reference.copy()
    ours[0] *= 1.5
    assert compare(ours, reference).is_within(FP16)
    assert compare(ours[0], reference[0]).worst_slice is None


@pytest.mark.parametrize("tolerance", [1e-4, 0.02, 0.16, 0.4])
def test_noise_of_half_the_tolerance_passes_in_every_slice(tolerance: float) -> None:
    """Single logits near zero, and a channel without signal, are as noisy as the rest."""
    limits = limits_of(tolerance)
    for shape in ((1, 1000), (2, 32, 10, 10), (1, 50, 768)):
        reference = 20 * normal(*shape)
        ours = reference + 20 * tolerance / 2 * normal(*shape, seed=1)
        assert compare(ours, reference, limits.floor).is_within(limits)


@pytest.mark.parametrize(
    ("tolerance", "slices", "floor"), [(1e-4, 0.05, 1e-4), (0.02, 0.2, 4e-4), (0.16, 0.9, 0.0256), (0.4, 0.9, 0.03)]
)
def test_limits_follow_from_the_tolerance(tolerance: float, slices: float, floor: float) -> None:
    assert limits_of(tolerance) == ComparisonLimits(tolerance, pytest.approx(slices), pytest.approx(floor))
    assert limits_of(tolerance, 0.7).slices == 0.7


def test_a_slice_of_zeros_is_measured_by_the_floor() -> None:
    reference = normal(1, 3, 1000)
    reference[0, 1] = 0
    ours = reference.copy()
    ours[0, 1] = 1e-3
    worst = compare(ours, reference, floor=0.01).worst_slice
    assert worst is not None
    assert (worst.index, worst.relative_rms_error) == (1, pytest.approx(0.1, rel=0.3))
    assert compare(np.zeros((1, 2)), np.zeros((1, 2))).worst_slice == WorstSlice(1, 0, 0.0)


def test_rows_of_background_in_a_map_are_no_slices_of_their_own() -> None:
    """A mask's rows without an object differ in probabilities that nobody reads; its channels decide."""
    reference = np.full((1, 2, 100, 100), 1e-4)
    reference[0, :, 40:60] = 0.9
    ours = reference.copy()
    ours[0, :, :40] *= 5
    assert compare(ours, reference, FP16.floor).is_within(FP16)
    ours[0, 1] = 0
    assert not compare(ours, reference, FP16.floor).is_within(FP16)
