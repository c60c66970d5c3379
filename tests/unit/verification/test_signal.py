"""None"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support import reports
from tests.support.reports import output
from trtkit.verification.compare import compare, limits_of
from trtkit.verification.report import Output
from trtkit.verification.signal import hollow_outputs, spread, unreal_reason

if TYPE_CHECKING:
    from trtkit.verification.report import LayerError, Report

FP32 = limits_of(1e-4)


def test_spread_is_the_movement_around_the_mean() -> None:
    assert spread([np.array([3.0, 4.0]), np.array([3.0, 2.0])]) == pytest.approx(1 / 5)
    assert spread([np.ones(3), np.ones(3)]) == 0
    assert spread([np.ones(3), np.ones(4)]) is None
    assert spread([np.ones(3)]) is None


def test_a_pass_on_outputs_that_hardly_move_proves_nothing() -> None:
    """As a network of random weights did: 636 with movements of 1.5e-5, verified to 7.8e-9."""
    assert hollow_outputs({"y": output(7.8e-9, spread=1.5e-5 / 636)}, FP32) == ("y",)
    assert hollow_outputs({"y": output(0.0, spread=0.0)}, FP32) == ("y",)


@pytest.mark.parametrize("moved", [0.5, 1e-3, None])
def test_a_pass_on_outputs_that_move_proves_something(moved: float | None) -> None:
    assert hollow_outputs({"y": output(5e-5, spread=moved)}, FP32) == ()


def test_an_error_far_below_a_small_movement_proves_something() -> None:
    assert hollow_outputs({"y": output(1e-8, spread=1e-5)}, FP32) == ()


def test_an_output_of_nothing_but_nan_proves_nothing() -> None:
    nothing = np.full((2, 3), np.nan)
    compared = compare(nothing, nothing)
    assert compared.relative_rms_error == 0
    assert hollow_outputs({"y": Output(**vars(compared), passed=True, spread=None)}, FP32) == ("y",)


FIX = "real inputs decide: `--inputs FILE` (images with `preprocess`, .npz), or `verify.ranges` for random ones"


def layer(tensor: str, error: float, *reads: str, largest: float = 1.0) -> LayerError:
    return reports.layer(f"node_{tensor}", error, largest, kind="elementwise", tensor=tensor, reads=reads)


def report(*layers: LayerError) -> Report:
    return reports.report(layers=layers, outputs={"y": reports.output(0.5)})


def test_a_layer_that_amplifies_is_named() -> None:
    found = unreal_reason(report(layer("a", 1e-4), layer("b", 2e-4, "a"), layer("y", 0.5, "b", "a")))
    expected = "`node_y` (elementwise) multiplies the error of its inputs by 2500, as near a division by zero"
    assert found == f"random inputs: {expected}; {FIX}"


def test_an_output_without_signal_is_named() -> None:
    found = unreal_reason(report(layer("a", 1e-4), layer("y", 1e-3, "a", largest=2e-8)))
    assert found == f"random inputs: output `y` has no signal, its largest value is 2.0e-08; {FIX}"


def test_error_that_grows_as_usual_is_the_networks_own() -> None:
    assert unreal_reason(report(layer("a", 1e-4), layer("y", 2e-3, "a"))) == ""
    assert unreal_reason(report()) == ""
    assert unreal_reason(report(layer("a", 0.0), layer("y", math.inf, "a"))) == ""
