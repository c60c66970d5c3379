"""Rounds, warm-up and steadiness on a clock that the test moves."""

from __future__ import annotations

import pytest

from tests.unit.benchmarking.clocks import VirtualClock
from trtkit.benchmarking.timing import Rules, Timing, measure

RULES = Rules(warmup_runs=2, warmup_s=0.1, min_runs=4, min_s=0.2, max_s=10)


def test_the_first_slow_calls_are_not_counted() -> None:
    clock, calls = VirtualClock(), []

    def run() -> None:
        calls.append(0)
        clock.sleep(1.0 if len(calls) <= 2 else 0.01)

    found = measure({"model": run}, RULES, clock)["model"]
    assert found.warmup_runs == 2
    assert found.samples_s == pytest.approx([0.01] * 20)  # 0.2 s, though four runs would do
    assert found.starts_s[:3] == pytest.approx([0, 0.01, 0.02])


def test_warming_goes_on_until_runs_and_seconds_are_reached() -> None:
    clock = VirtualClock()
    found = measure({"model": lambda: clock.sleep(0.03)}, RULES, clock)["model"]
    assert found.warmup_runs == 4  # 0.12 s


def test_what_is_very_slow_ends_with_few_runs() -> None:
    clock = VirtualClock()
    rules = Rules(min_runs=100, max_s=10, few_runs=5)
    assert len(measure({"model": lambda: clock.sleep(3)}, rules, clock)["model"].samples_s) == 5


def test_rounds_are_interleaved_and_the_order_turns() -> None:
    clock, order = VirtualClock(), []

    def call(name: str) -> object:
        return lambda: (order.append(name), clock.sleep(0.05))

    found = measure({name: call(name) for name in "abc"}, Rules(0, 0, 4, 0), clock)  # type: ignore[misc]
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert [len(each.samples_s) for each in found.values()] == [4, 4, 4]


def test_drift_is_known() -> None:
    assert Timing((1, 1, 1, 1, 1, 1), (), 0).is_steady
    slower = Timing((1, 1, 1, 1.2, 1.2, 1.2), (), 0)
    assert slower.drift == pytest.approx(0.2)
    assert not slower.is_steady
    assert not Timing((2, 2, 1), (), 0).is_steady
