"""Schedules change the order and no token: preempted requests are swapped out or recomputed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clocked import ClockedDecoder, clocked_engine
from tests.support.generation import SLOTS, Asked, alone, is_clean, run, settings
from trtkit.llm.engine import Finished, LLMEngine, Metrics, Request
from trtkit.llm.scheduler import ScheduleOptions, SchedulingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


def serve(tested: LLMEngine, asked: Sequence[tuple[int, Request]]) -> dict[str, Finished]:
    """Submit each request at its step; return how each ended, in that order."""
    results: dict[str, Finished] = {}
    for step in range(2000):
        for _, request in (each for each in asked if each[0] == step):
            request.metrics.arrived_s = tested._options.clock()
            tested.submit(request)
        results |= {finished.request.id: finished for finished in tested.step()}
        if len(results) == len(asked):
            return results
    raise AssertionError("some requests starve")


def load(count: int, seed: int) -> dict[str, tuple[int, Asked, SchedulingParams]]:
    """Return requests with the step that each comes at: long ones first, then short ones, most of higher priority."""
    r = random.Random(seed)
    requests = {}
    for index in range(count):
        prompt = tuple(r.randrange(3, 67) for _ in range(r.choice((2, 5, 20, 30))))
        kind: dict[str, Any] = {"temperature": 0} if r.random() < 0.5 else {"temperature": 1.0, "seed": index}
        is_long = index < 2 * SLOTS
        params = {"max_tokens": 30 if is_long else r.choice((2, 4)), "ignore_eos": True, **kind}
        scheduling = SchedulingParams(2 if is_long else r.randrange(3), r.choice("ab"))
        requests[f"r{index}"] = (
            r.randrange(4 if is_long else 2 * count),
            Asked(prompt, tuple(params.items())),
            scheduling,
        )
    return requests


SCHEDULES = {
    "fcfs": ScheduleOptions("fcfs"),
    "priority": ScheduleOptions("priority"),
    "mlfq": ScheduleOptions("mlfq", quantum_s=1.0, levels=4, starvation_s=20),
    "fair": ScheduleOptions("mlfq", {"a": 3.0}, quantum_s=1.0, levels=4, starvation_s=20),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "options",
    [
        {"min_shared_tokens": 1},
        {"min_shared_tokens": 1, "overlap": True, "token_budget": 5},
        {"host_cache_bytes": 0, "overlap": True, "token_budget": 5},
    ],
    ids=["saved", "saved, overlap", "computed again"],
)
def test_tokens_do_not_depend_on_the_schedule(schedule: str, options: dict[str, Any]) -> None:
    asked = load(30, seed=7)
    tested = clocked_engine(SLOTS, schedule=SCHEDULES[schedule], **options)
    requests = [
        (step, Request(name, list(each.prompt), settings(**dict(each.params)), scheduling))
        for name, (step, each, scheduling) in asked.items()
    ]
    results = serve(tested, requests)
    assert {name: tuple(finished.token_ids) for name, finished in results.items()} == {
        name: alone(each) for name, (_, each, _) in asked.items()
    }
    preemptions, restored = tested.statistics.preemptions, tested.statistics.restored_tokens
    if schedule == "fcfs" or (schedule != "priority" and not options.get("host_cache_bytes", 1)):
        assert preemptions == 0  # mlfq preempts nobody whose work would be lost
    else:
        assert preemptions > 3
        assert (restored > 0) == ("host_cache_bytes" not in options)
    assert is_clean(tested)
    assert not tested.host.retained_bytes


def test_under_mlfq_a_short_answer_does_not_wait_for_long_ones() -> None:
    """Five long requests fill four slots and the queue; a short one ends first although it came last."""
    ends = {}
    for schedule in ("fcfs", "mlfq"):
        tested = clocked_engine(SLOTS, schedule=ScheduleOptions(schedule, quantum_s=2.0))
        long = settings(max_tokens=30, ignore_eos=True, temperature=0)
        requests = [(0, Request(f"long{index}", [5, 6, 7 + index], long)) for index in range(5)]
        short = Request("short", [9, 10], settings(max_tokens=2, ignore_eos=True, temperature=0))
        results = serve(tested, [*requests, (8, short)])
        ends[schedule] = list(results).index("short"), results["short"].request.metrics
    assert ends["mlfq"][0] == 0
    assert ends["fcfs"][0] >= 4
    quick, slow = (ends[name][1] for name in ("mlfq", "fcfs"))
    assert quick.finished_s is not None
    assert slow.finished_s is not None
    assert quick.finished_s - quick.arrived_s <= 5
    assert slow.finished_s - slow.arrived_s >= 20


def test_a_request_that_cannot_begin_by_its_deadline_ends_with_an_error_that_says_so() -> None:
    tested = clocked_engine(1)
    params = settings(max_tokens=10, ignore_eos=True, temperature=0)
    first = Request("first", [5, 6], params, SchedulingParams(deadline_s=3.0))
    late = Request("late", [5, 7], params, SchedulingParams(deadline_s=3.0))
    later = Request("later", [5, 8], params, SchedulingParams(deadline_s=30.0))
    results = serve(tested, [(0, first), (1, late), (1, later)])
    assert [results[name].reason for name in ("first", "late", "later")] == ["length", "error", "length"]
    assert results["late"].stop_reason == "its deadline passed after 3 s in the queue"
    assert (results["late"].token_ids, late.metrics.finished_s) == ([], 4.0)


def test_a_request_says_when_it_came_by_the_engines_clock() -> None:
    tested = clocked_engine(1, lambda _: 2.0)
    request = Request("a", [5, 6], settings(max_tokens=3, ignore_eos=True), metrics=Metrics(arrived_s=-1.0))
    run(tested, [request])
    assert (request.metrics.arrived_s, request.metrics.first_token_s, request.metrics.finished_s) == (-1.0, 2.0, 6.0)


def test_a_running_request_of_the_same_level_is_not_preempted() -> None:
    tested = clocked_engine(1, schedule=ScheduleOptions("fcfs"))
    requests = [
        Request(name, [5, 6], settings(max_tokens=4, ignore_eos=True), SchedulingParams(priority))
        for name, priority in (("low", 9), ("high", -9))
    ]
    assert list(run(tested, requests)) == ["low", "high"]
    assert tested.statistics.preemptions == 0


@pytest.mark.parametrize(("seconds_per_block", "swaps"), [(0.0, True), (0.2, True), (100.0, False)])
def test_who_gives_way_is_kept_or_computed_again_by_what_takes_less_time(
    seconds_per_block: float, swaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a prompt takes a second a token here, and four tokens are a block, which is copied out and back.

    What a copy takes is known after the first one: until then it is taken for fast.
    """
    tested = clocked_engine(1, lambda call: float(call.counts.max()), host_block_tokens=4, min_shared_tokens=1)
    clock, blocks = tested.execution, tested._state.transfers._blocks
    assert isinstance(clock, ClockedDecoder)
    save = blocks.save

    def slow_save(places: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], bool]:
        clock.now_s += seconds_per_block * len(places)
        return save(places, rows)

    monkeypatch.setattr(blocks, "save", slow_save)
    params = (("max_tokens", 12), ("ignore_eos", True), ("temperature", 0))
    low = [Asked(tuple(range(5 + index, 25 + index)), params) for index in range(4)]
    high = Asked((50, 51), (("max_tokens", 2), ("temperature", 0)))
    requests = []
    for index, each in enumerate(low):
        requests += [
            (40 * index, replace(each, priority=1).request(f"low{index}")),
            (40 * index + 6, high.request(f"high{index}")),
        ]
    results = serve(tested, requests)
    for index, each in enumerate(low):
        assert tuple(results[f"low{index}"].token_ids) == alone(each)
        assert tuple(results[f"high{index}"].token_ids) == alone(high)
    assert tested.statistics.preemptions == 4
    assert tested.statistics.swaps == (4 if swaps else 1)
    assert tested.statistics.restored_tokens == (4 if swaps else 1) * 24
