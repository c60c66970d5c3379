"""What one error over a whole output hides: a channel or a position whose answers are gone."""

from __future__ import annotations

import numpy as np
import pytest

from trtkit.verification.compare import compare
from trtkit.verification.report import ComparisonLimits, WorstSlice
from trtkit.verification.slices import limits_of

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
