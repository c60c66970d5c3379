"""The verdict names what is wrong: numbers first, answers where only they are."""

from __future__ import annotations

from typing import Any

import pytest

from trtkit.verification.verdict import reason, verdict

FOUND: dict[str, Any] = {
    "passed": False,
    "tolerance": 0.4,
    "outputs": {"logits": {"relative_rms_error": 0.06}},
    "task": {"measure": "top-1", "agreement": 2 / 3, "required": 1.0},
    "corners": [{"passed": True}],
    "engine": None,
}


def test_wrong_answers_of_a_close_network_are_named() -> None:
    assert verdict(FOUND) == "wrong answers"
    assert reason(FOUND) == "66.7% of top-1 equal the reference's, 100.0% are asked for"


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": {"logits": {"relative_rms_error": 0.41}}},
        {"outputs": {"logits": {"relative_rms_error": None}}},
        {"corners": [{"passed": True}, {"passed": False}]},
        {"parts": [{"passed": False}]},
        {"rows": {"passed": False}},
        {"engine": {"passed": False}},
        {"perplexity": {"passed": False}},
    ],
)
def test_whatever_else_is_wrong_comes_first(change: dict[str, Any]) -> None:
    assert (verdict({**FOUND, **change}), reason({**FOUND, **change})) == ("out of tolerance", "tolerance 0.4")


def test_what_passed_is_right() -> None:
    assert verdict({**FOUND, "passed": True}) == "right"


def test_a_slice_that_is_wrong_is_named_where_the_whole_is_close() -> None:
    worst = {"axis": 1, "index": 17, "relative_rms_error": 0.98}
    outputs = {"y": {"relative_rms_error": 2e-4, "passed": False, "worst_slice": worst}}
    found = {**FOUND, "outputs": outputs, "slice_tolerance": 0.2}
    assert verdict(found) == "out of tolerance"
    assert reason(found) == "`y` at axis 1, index 17: 9.8e-01 of its own size; 0.2 is allowed"


def test_a_pass_that_proves_nothing_says_so() -> None:
    outputs = {"y": {"relative_rms_error": 1e-9, "passed": True, "spread": 2.4e-8}}
    found = {**FOUND, "passed": True, "outputs": outputs, "hollow": ["y"]}
    assert verdict(found) == "proves nothing"
    assert reason(found) == (
        "tolerance 0.4; `y` moves by 2.4e-08 between inputs: a network that ignores its inputs would pass too"
    )
    assert verdict({**found, "outputs": {**outputs, "z": outputs["y"]}}) == "right"
