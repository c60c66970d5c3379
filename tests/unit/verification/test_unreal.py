"""A failure on random inputs says where the inputs themselves are to blame."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tests import reports
from trtkit.verification.unreal import unreal_reason

if TYPE_CHECKING:
    from trtkit.verification.report import LayerError, Report

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
