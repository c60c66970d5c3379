"""What steps took, by what they computed."""

from __future__ import annotations

import pytest

from trtkit.llm.scheduler.costs import Average, StepCosts


def test_a_prompts_tokens_take_what_a_step_took_besides_decoding() -> None:
    costs = StepCosts()
    assert costs.prompt_token_s is None
    costs.note(2.0, 0, decodes=True)
    assert costs.prompt_token_s is None
    costs.note(12.0, 100, decodes=True)
    assert costs.prompt_token_s == pytest.approx(0.1)
    costs.note(30.0, 100, decodes=False)
    assert costs.prompt_token_s == pytest.approx(0.8 * 0.1 + 0.2 * 0.3)
    costs.note(1.0, 10, decodes=True)  # less than decoding alone: never less than nothing
    assert costs.prompt_token_s == pytest.approx(0.8 * 0.14)


def test_where_steps_overlap_a_step_waits_for_the_one_before() -> None:
    costs = StepCosts(is_late=True)
    for seconds, tokens, decodes in ((0.1, 100, False), (50.0, 0, True), (2.0, 0, True), (2.0, 10, True)):
        costs.note(seconds, tokens, decodes=decodes)
    assert costs.prompt_token_s == pytest.approx(0.5)
    costs.note(7.0, 0, decodes=True)
    assert costs.prompt_token_s == pytest.approx(0.8 * 0.5 + 0.2 * 0.5)


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("earlier", [(), (0.3,)])
def test_a_series_of_measurements_is_all_of_them(count: int, earlier: tuple[float, ...]) -> None:
    at_once, one_by_one = Average(), Average()
    for value in earlier:
        at_once.add(value)
        one_by_one.add(value)
    at_once.add_series(0.1, 0.02, count)
    for number in range(count):
        one_by_one.add(0.1 + 0.02 * number)
    assert at_once.value == pytest.approx(one_by_one.value, rel=1e-12)
