"""However requests share an engine, each gets exactly its answer alone."""

from __future__ import annotations

import gc
import random
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.generation import (
    SLOTS,
    Asked,
    alone,
    decoder,
    engine,
    is_clean,
    lone_engine,
    reusable,
    run,
    settings,
)
from trtkit.llm.engine import EngineOptions, LLMEngine, Request

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("caches")


KINDS: tuple[Callable[[random.Random], dict[str, Any]], ...] = (
    lambda _: {"temperature": 0},
    lambda r: {"temperature": 0, "repetition_penalty": r.choice((0.8, 1.3))},
    lambda r: {"temperature": r.uniform(0.3, 2), "seed": r.randrange(1000)},
    lambda r: {"temperature": 1.0, "top_k": r.randint(1, 30), "top_p": r.uniform(0.3, 1), "seed": r.randrange(1000)},
    lambda _: {"temperature": 0, "presence_penalty": 1.0, "frequency_penalty": 0.5, "no_repeat_ngram_size": 2},
    lambda r: {"temperature": 1.2, "min_p": 0.05, "typical_p": 0.9, "min_tokens": 2, "seed": r.randrange(1000)},
    lambda r: {"num_beams": r.choice((2, 3)), "length_penalty": r.choice((0.5, 1.0, 2.0))},
)


def draw(r: random.Random) -> Asked:
    """Return a random request; half of the prompts begin alike."""
    stem = [5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49]
    own = [r.randrange(3, 67) for _ in range(r.randint(1, 20))]
    prompt = stem[: r.randint(1, 12)] + own[: r.randint(1, 6)] if r.random() < 0.5 else own
    params = {"max_tokens": r.randint(2, 14), **r.choice(KINDS)(r)}
    return Asked(tuple(prompt), tuple(params.items()), r.choice((0, 0, 0, 1, 2)))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", [2, 4])
def test_a_request_goes_on_as_before_next_to_another_s_slot(kind: int, overlap: bool) -> None:
    """When the four of six slots between two others are free, the last sequence moves next to the first."""
    r = random.Random(kind)
    params = [{"max_tokens": most, "ignore_eos": True, **KINDS[kind](r)} for most in (14, 2, 2, 2, 2, 14)]
    prompts = [tuple(r.randrange(3, 67) for _ in range(5)) for _ in params]
    asked = [Asked(prompt, tuple(each.items()), 0) for prompt, each in zip(prompts, params, strict=True)]
    tested = engine(6, overlap=overlap)
    for number, each in enumerate(asked):
        tested.submit(each.request(str(number)))
    found, running = {}, list[list[int]]()
    while tested.has_work:
        found |= {finished.request.id: finished for finished in tested.step()}
        running.append(tested.slots.is_running.nonzero()[0].tolist())
    assert [0, 1] in running
    assert [tuple(found[str(number)].token_ids) for number in range(6)] == [alone(each) for each in asked]


@pytest.mark.parametrize(
    ("options", "seed"),
    [
        ({}, 0),
        ({"min_shared_tokens": 1}, 1),
        ({"token_budget": 3, "min_shared_tokens": 1}, 2),
        ({"overlap": True}, 4),
        ({"overlap": True, "token_budget": 3, "min_shared_tokens": 1}, 4),
    ],
    ids=["plain", "shared beginnings", "small budget", "overlap", "overlap, small budget"],
)
@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_requests_that_come_and_go_get_what_each_gets_alone(options: dict[str, Any], seed: int, count: int) -> None:
    r = random.Random(seed)
    asked = {f"r{index}": draw(r) for index in range(count)}
    arrivals = {name: r.randint(0, count * 3 // 2) for name in asked}
    cancelled = {name: arrivals[name] + r.randint(1, 30) for name in r.sample(sorted(asked), count * 3 // 20)}
    tested, found, step = engine(SLOTS, **options), {}, 0
    while tested.has_work or step <= count * 3 // 2:
        for name in (name for name, at in arrivals.items() if at == step):
            tested.submit(asked[name].request(name))
        for name in (name for name, at in cancelled.items() if at == step):
            tested.cancel(name)
        found |= {finished.request.id: finished for finished in tested.step()}
        step += 1
    assert found.keys() == asked.keys()
    for name, finished in found.items():
        expected = alone(asked[name])
        if finished.reason == "abort":
            assert name in cancelled
            is_beam = "num_beams" in dict(asked[name].params)
            assert is_beam or tuple(finished.token_ids) == expected[: len(finished.token_ids)]
        else:
            assert tuple(finished.token_ids) == expected, asked[name]
    assert sum(finished.reason == "abort" for finished in found.values()) > count // 40
    assert tested.statistics.preemptions > 0
    assert tested.statistics.reused_tokens > 0 or "min_shared_tokens" not in options
    assert is_clean(tested)


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 40), ({"token_budget": 4, "min_shared_tokens": 1}, 40), ({"kernel": True}, 8)],
    ids=["plain", "small budget", "kernel"],
)
def test_steps_are_launched_before_the_last_ones_tokens_are_known(options: dict[str, Any], count: int) -> None:
    """Requests of all settings but beams, with ends of all kinds: nothing waits, and no token is another one."""
    r = random.Random(5)
    asked = {}
    for index in range(count):
        prompt = tuple(r.randrange(3, 67) for _ in range(r.randint(1, 20)))
        kind = KINDS[index % (len(KINDS) - 1)]
        params = {"max_tokens": r.randint(1, 30), **kind(r), "stop_token_ids": (r.randrange(3, 67),)}
        asked[f"r{index}"] = Asked(prompt, tuple(params.items()))
    tested = engine(SLOTS, overlap=True, **options)
    answers = run(tested, [each.request(name) for name, each in asked.items()])
    assert {name: tuple(finished.token_ids) for name, finished in answers.items()} == {
        name: alone(each) for name, each in asked.items()
    }
    assert {finished.reason for finished in answers.values()} == {"stop", "length"}
    statistics = tested.statistics
    assert statistics.synchronous_steps <= statistics.steps // 10  # those whose sequences are moved together
    assert 0 < statistics.discarded_tokens <= len(asked)
    assert statistics.generated_tokens == sum(len(finished.token_ids) for finished in answers.values())
    assert is_clean(tested)


@pytest.mark.parametrize("kernel", [False, True])
def test_only_steps_with_rows_that_see_logits_on_the_host_are_synchronous(kernel: bool) -> None:
    """A user's function sees the logits of 4 steps after the prompt's, beside a request that goes on for longer."""

    def likes_seven(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(-1, torch.tensor([7 if ids[0, -1] != 7 else 8]), 99.0)

    tested = engine(SLOTS, overlap=True, kernel=kernel)
    own = settings(max_tokens=5, temperature=0, logits_processors=(likes_seven,))
    other = settings(max_tokens=12, temperature=0, repetition_penalty=1.4, ignore_eos=True)
    answers = run(tested, [Request("own", [5, 6], own), Request("other", [9, 10, 11], other)])
    assert answers["own"].token_ids == [7, 8, 7, 8, 7]
    assert answers["other"].token_ids == run(engine(1), [Request("other", [9, 10, 11], other)])["other"].token_ids
    assert tested.statistics.synchronous_steps == 4


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_schedule_changes_a_token(data: st.DataObject) -> None:
    budget, shared = data.draw(st.sampled_from([None, 1, 5])), data.draw(st.sampled_from([1, 4, 1000]))
    tested = engine(SLOTS, token_budget=budget, min_shared_tokens=shared, overlap=data.draw(st.booleans()))
    asked: dict[str, Asked] = {}
    found, cancelled = {}, set()
    for kind in data.draw(st.lists(st.sampled_from(["submit", "submit", "step", "step", "cancel"]), max_size=30)):
        if kind == "submit":
            name = f"r{len(asked)}"
            asked[name] = draw(random.Random(data.draw(st.integers(0, 40))))
            tested.submit(asked[name].request(name))
        elif kind == "cancel" and asked:
            name = data.draw(st.sampled_from(sorted(asked)))
            cancelled |= {name} if tested.cancel(name) else set()
        else:
            found |= {finished.request.id: finished for finished in tested.step()}
    while tested.has_work:
        found |= {finished.request.id: finished for finished in tested.step()}
    assert found.keys() == asked.keys()
    for name in found.keys() - cancelled:
        assert tuple(found[name].token_ids) == alone(asked[name])
    assert is_clean(tested)


def test_a_prompt_that_continues_an_answer_is_computed_from_there() -> None:
    tested = engine(SLOTS, min_shared_tokens=4)
    prompt = list(range(5, 25))
    first = run(tested, [Request("a", prompt, settings(max_tokens=8, temperature=0, ignore_eos=True))])["a"]
    longer = [*prompt, *first.token_ids, 7, 8]
    second = run(tested, [Request("b", longer, settings(max_tokens=4, temperature=0))])["b"]
    assert second.request.metrics.reused == reusable(len(prompt) + 7)  # the last token of the answer was never read
    assert (
        second.token_ids
        == run(lone_engine(), [Request("c", longer, settings(max_tokens=4, temperature=0))])["c"].token_ids
    )


def test_a_running_request_shares_its_beginning() -> None:
    tested = engine(SLOTS, min_shared_tokens=4)
    prompt = list(range(5, 21))
    tested.submit(Request("a", prompt, settings(max_tokens=30, temperature=0, ignore_eos=True)))
    tested.step()
    tested.step()
    tested.submit(Request("b", [*prompt, 60], settings(max_tokens=3, temperature=0)))
    found = {}
    while tested.has_work:
        found |= {finished.request.id: finished for finished in tested.step()}
    assert found["b"].request.metrics.reused == reusable(len(prompt))
    assert found["b"].token_ids == list(alone(Asked((*prompt, 60), (("max_tokens", 3), ("temperature", 0)))))


@pytest.mark.parametrize("overlap", [False, True])
def test_requests_that_are_admitted_together_share_what_the_first_of_them_computes(overlap: bool) -> None:
    """A step reads 16 tokens: all of what the prompts share but 2 tokens, which each of them reads itself."""
    stem = [5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61, 65, 7, 11]
    asked = {str(own): Asked((*stem, own, 3), (("max_tokens", 6), ("temperature", 0))) for own in range(20, 24)}
    tested = engine(SLOTS, min_shared_tokens=4, overlap=overlap)
    answers = run(tested, [each.request(name) for name, each in asked.items()])
    assert {name: tuple(answer.token_ids) for name, answer in answers.items()} == {
        name: alone(each) for name, each in asked.items()
    }
    assert [answers[name].request.metrics.reused for name in asked] == [0, 16, 16, 16]
    assert tested.statistics.reused_tokens == 48
    assert tested.statistics.prompt_tokens == 4 * 20 - 48
    assert is_clean(tested)


def test_a_request_shares_what_is_computed_while_it_waits_for_its_first_piece() -> None:
    """It begins with all of the first prompt but its last token, though it has a slot from the start."""
    prompt = list(range(5, 35))
    tested = engine(SLOTS, min_shared_tokens=4, token_budget=8)
    answers = run(tested, [Request(name, prompt, settings(max_tokens=3, temperature=0)) for name in "ab"])
    expected = alone(Asked(tuple(prompt), (("max_tokens", 3), ("temperature", 0))))
    assert [tuple(answers[name].token_ids) for name in "ab"] == [expected, expected]
    assert answers["b"].request.metrics.reused == reusable(29)


def test_short_prefixes_and_prompts_with_log_probabilities_are_computed_again() -> None:
    prompt, greedy = list(range(5, 25)), {"max_tokens": 2, "temperature": 0}
    for least, params in ((1000, greedy), (1, {**greedy, "prompt_logprobs": 0})):
        model = decoder("llama", SLOTS, has_all_logits=True)
        tested = LLMEngine(model, EngineOptions(min_shared_tokens=least))
        answers = run(tested, [Request(name, prompt, settings(**params)) for name in "abc"])
        assert [answer.request.metrics.reused for answer in answers.values()] == [0, 0, 0]
        assert tested.statistics.prompt_tokens == 60


def test_urgent_requests_take_slots_and_the_others_go_on_later() -> None:
    tested = engine(1)
    slow = Asked((5, 6, 7), (("max_tokens", 20), ("temperature", 1.0), ("seed", 5), ("ignore_eos", True)), priority=1)
    quick = Asked((8, 9), (("max_tokens", 3), ("temperature", 0)))
    tested.submit(slow.request("slow"))
    for _ in range(5):
        tested.step()
    tested.submit(quick.request("quick"))
    order = []
    found = {}
    while tested.has_work:
        for finished in tested.step():
            order.append(finished.request.id)
            found[finished.request.id] = finished
    assert order == ["quick", "slow"]
    assert found["slow"].request.metrics.preemptions == 1
    assert (tuple(found["slow"].token_ids), tuple(found["quick"].token_ids)) == (alone(slow), alone(quick))


def test_requests_of_one_priority_are_served_in_turn() -> None:
    tested = engine(1)
    for index in range(5):
        tested.submit(Request(str(index), [5 + index], settings(max_tokens=1 + index % 3, temperature=0)))
    order = []
    while tested.has_work:
        order += [finished.request.id for finished in tested.step()]
    assert order == ["0", "1", "2", "3", "4"]


@pytest.mark.slow
def test_ten_thousand_steps_leave_memory_flat() -> None:
    r, steps, early = random.Random(0), 0, 0.0
    tested = engine(SLOTS, min_shared_tokens=4, host_cache_bytes=1 << 20)
    names = iter(range(10**6))
    while steps < 10_000:
        while tested.free_slots and r.random() < 0.5:
            tested.submit(draw(r).request(str(next(names))))
        if r.random() < 0.02:
            tested.cancel(str(r.randrange(10_000)))
        tested.step()
        steps += 1
        if steps == 2_000:
            gc.collect()
            early = _resident_mib()
    gc.collect()
    assert _resident_mib() - early < 8
    while tested.has_work:
        tested.step()
    assert is_clean(tested)


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
