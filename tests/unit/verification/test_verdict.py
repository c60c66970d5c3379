"""The verdict names what is wrong: numbers first, answers where only they are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.support.reports import output, report
from trtkit.verification.report import (
    Agreement,
    BundleNetwork,
    Corner,
    EngineOutputs,
    PartOutput,
    PerplexityCheck,
    Rows,
    WorstSlice,
)
from trtkit.verification.verdict import fix, reason, verdict

WRONG_ANSWERS = report(
    passed=False, tolerance=0.4, outputs={"logits": output(0.06)}, task=Agreement("top-1", 2 / 3, required=1.0)
)
RIGHT, WRONG = (Corner("profile 0 min", {}, passed, 0.0) for passed in (True, False))


def test_wrong_answers_of_a_close_network_are_named() -> None:
    assert verdict(WRONG_ANSWERS) == "FAIL (wrong answers)"
    assert reason(WRONG_ANSWERS) == "66.7% of top-1 match the reference; 100.0% required"


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": {"logits": output(0.41, passed=False)}},
        {"outputs": {"logits": output(math.inf, passed=False)}},
        {"corners": (RIGHT, WRONG)},
        {"parts": (PartOutput(0.0, 0.0, 0.0, 1.0, name="neck", module="neck", passed=False),)},
        {"rows": Rows(0.5, 0.1, passed=False)},
        {"engine": EngineOutputs(passed=False, outputs={})},
        {"perplexity": PerplexityCheck("t.txt", 1, 2, 2.0, 1.0, 1.0, 0.1, passed=False)},
    ],
)
def test_whatever_else_is_wrong_comes_first(change: dict[str, Any]) -> None:
    changed = replace(WRONG_ANSWERS, **change)
    assert (verdict(changed), reason(changed)) == ("FAIL (out of tolerance)", "tolerance 0.4")


def test_another_network_in_the_bundle_comes_before_all_else() -> None:
    networks = (BundleNetwork("vision"), BundleNetwork("m", 1, layer="a/relu", difference="the layer is missing"))
    changed = replace(WRONG_ANSWERS, networks=networks)
    assert verdict(changed) == "FAIL (other network)"
    assert reason(changed) == (
        "the bundle's network is not the one written from its source: "
        "stage `m`, rank 1, layer `a/relu`: the layer is missing"
    )
    assert fix(changed) == "build it again: `trtkit build CONFIG --output BUNDLE`"


def test_what_passed_is_right() -> None:
    assert verdict(replace(WRONG_ANSWERS, passed=True)) == "PASS"


def test_a_slice_that_is_wrong_is_named_where_the_whole_is_close() -> None:
    outputs = {"y": output(2e-4, passed=False, worst_slice=WorstSlice(1, 17, 0.98))}
    changed = replace(WRONG_ANSWERS, outputs=outputs)
    assert verdict(changed) == "FAIL (out of tolerance)"
    assert reason(changed) == "`y` at axis 1, index 17: 9.8e-01 relative to its own size; limit 0.2"


def test_a_pass_that_proves_nothing_says_so() -> None:
    hollow = output(1e-9, spread=2.4e-8)
    changed = replace(WRONG_ANSWERS, passed=True, outputs={"y": hollow}, hollow=("y",))
    assert verdict(changed) == "PASS (inconclusive)"
    assert reason(changed) == (
        "tolerance 0.4; `y` changes by only 2.4e-08 between inputs, so a network that ignores its inputs would pass too"
    )
    assert verdict(replace(changed, outputs={"y": hollow, "z": hollow})) == "PASS"
