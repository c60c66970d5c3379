"""Models with recurrent states: a slot's state depends only on its own tokens, however requests come and go."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from tests.integration.test_generate_parity import RECURRENT, STATES
from tests.integration.test_in_flight_batching import draw
from tests.selection import slow_unless
from tests.support.decoders import executor_of
from tests.support.generation import SLOTS, Asked, alone, answer, case_of, decoder, engine, is_clean, run
from trtkit.dtypes import FP32
from trtkit.errors import ExecutionError
from trtkit.llm.engine import DraftProposer, LookupProposer
from trtkit.llm.execution import Call

PROMPT = random.Random(7).choices(range(3, 67), k=30)
GREEDY = ("max_tokens", 6), ("temperature", 0)
DRAFT = "qwen3_5_text"
GUESSED = {"lookup": {"temperature": 0}, "draft": {"temperature": 0.9, "seed": 3}}
REQUESTS = 32
WORK: dict[str, dict[str, Any]] = {
    "plain": {},
    "small budget": {"token_budget": 3},
    "overlap": {"overlap": True},
    "overlap, small budget": {"overlap": True, "token_budget": 3},
    "speculation": {"proposer": LookupProposer(4, shortest=1)},
}
LAST = "overlap, small budget"
EVERY_TIME = set(zip(("small budget", "overlap", "plain"), STATES, strict=True))
families = pytest.mark.parametrize("model_type", RECURRENT)

pytestmark = pytest.mark.usefixtures("caches")


def continued(r: random.Random, asked: Asked, tokens: list[int]) -> Asked:
    """Return a request that goes on after another's answer, or turns off before its end."""
    before = [*asked.prompt, *tokens][: None if r.random() < 0.7 else -r.randint(1, 3)][:45]
    params = dict(draw(r).params) | {"max_tokens": r.randint(2, 10)}
    own = (r.randrange(3, 67) for _ in range(r.randint(1, 4)))
    return Asked((*before, *own), tuple(params.items()), r.choice((0, 1, 2)))


@pytest.mark.parametrize(
    ("kind", "model_type"),
    slow_unless(
        lambda kind, family: (kind, family) in EVERY_TIME or (kind == LAST and family in STATES),
        itertools.product(WORK, RECURRENT),
    ),
)
def test_requests_that_come_and_go_get_what_each_gets_alone(kind: str, model_type: str) -> None:
    """Prompts that begin alike or go on from answers, beams, preemptions and cancellations."""
    r, options = random.Random(1 + list(WORK).index(kind)), WORK[kind]
    tested = engine(SLOTS, model_type, **options, min_shared_tokens=1)
    asked: dict[str, Asked] = {}
    found: dict[str, tuple[str, list[int]]] = {}
    for step in range(10_000):
        if len(asked) < REQUESTS and r.random() < 0.8:
            done = [name for name, (reason, tokens) in found.items() if reason != "abort" and tokens]
            name = f"r{len(asked)}"
            parent = r.choice(done[-4:]) if done and r.random() < 0.6 else None
            asked[name] = draw(r) if parent is None else continued(r, asked[parent], found[parent][1])
            tested.submit(asked[name].request(name))
        if step % 17 == 16:
            tested.cancel(r.choice(sorted(asked.keys() - found.keys()) or ["nobody"]))
        found |= {each.request.id: (each.reason, each.token_ids) for each in tested.step()}
        if len(found) == REQUESTS:
            break
    assert not tested.step()  # one may still be in flight
    for name, (reason, tokens) in found.items():
        expected = alone(asked[name], model_type)
        if reason != "abort":
            assert tuple(tokens) == expected
        elif "num_beams" not in dict(asked[name].params):
            assert tuple(tokens) == expected[: len(tokens)]
    assert tested.statistics.preemptions > 0 or "proposer" in options
    assert tested.statistics.reused_tokens > 0
    assert is_clean(tested)


@pytest.mark.parametrize(
    ("model_type", "overlap"),
    slow_unless(lambda family, overlap: family in STATES or not overlap, itertools.product(RECURRENT, (False, True))),
)
def test_a_prompt_reuses_only_what_it_begins_with_all_of(model_type: str, overlap: bool) -> None:
    tested, greedy = engine(1, model_type, min_shared_tokens=4, overlap=overlap), {"temperature": 0, "max_tokens": 9}
    first = answer(tested, PROMPT, **greedy, ignore_eos=True)
    answer(tested, [*PROMPT[:20], 5], **greedy)
    assert tested.statistics.reused_tokens == 0
    first = answer(tested, PROMPT, **greedy, ignore_eos=True, stop_token_ids=(first[3],))
    before = tested.statistics.prompt_tokens
    following = [*PROMPT, *first, 9, 11]
    assert answer(tested, following, **greedy) == answer(engine(1, model_type), following, **greedy)
    read = len(PROMPT) + len(first) - (not overlap)  # a step in flight has read the last token, too
    assert tested.statistics.reused_tokens == read
    assert tested.statistics.prompt_tokens - before == len(following) - read


@pytest.mark.parametrize("model_type", ["qwen3_next", "lfm2"])
def test_prompts_that_share_a_part_go_on_from_states_saved_on_the_way(model_type: str) -> None:
    tested = engine(SLOTS, model_type, token_budget=5, snapshot_tokens=8, min_shared_tokens=1)
    for name, shared, reused in (("first", 30, 0), ("second", 23, 20), ("third", 23, 20), ("fourth", 12, 10)):
        own = [50 + len(name), 61] if shared < len(PROMPT) else []
        asked = Asked((*PROMPT[:shared], *own, len(name)), (("max_tokens", 6), ("temperature", 0)))
        finished = run(tested, [asked.request(name)])[name]
        assert tuple(finished.token_ids) == alone(asked, model_type)
        assert finished.request.metrics.reused == reused
    assert tested.statistics.restored_tokens == 50


@families
def test_requests_that_are_admitted_together_go_on_from_states_where_they_are_alike(model_type: str) -> None:
    """The second prompt begins where the first one is after a step; the third is alike for less than any has read."""
    prompts = (PROMPT, [*PROMPT[:20], 3, 4, 5, 6], [*PROMPT[:12], 7, 8, 9])
    asked = {str(number): Asked(tuple(ids), GREEDY) for number, ids in enumerate(prompts)}
    tested = engine(SLOTS, model_type, min_shared_tokens=1, host_cache_bytes=0)
    answers = run(tested, [each.request(name) for name, each in asked.items()])
    for name, each in asked.items():
        assert tuple(answers[name].token_ids) == alone(each, model_type)
    assert [answers[name].request.metrics.reused for name in asked] == [0, 16, 0]
    assert is_clean(tested)


@families
def test_another_engine_goes_on_from_saved_states(model_type: str) -> None:
    first, second, greedy = engine(2, model_type), engine(3, model_type), {"temperature": 0, "max_tokens": 6}
    told = answer(first, PROMPT, **greedy, ignore_eos=True)
    following = [*PROMPT, *told, 9]
    saved = first.prefixes.export(following)
    assert saved is not None
    assert first.prefixes.export([*PROMPT[:20], 3]) is None
    for prompt, is_imported in (([*PROMPT[:20], 3], False), (following, True)):
        assert second.prefixes.add(following, saved)
        before = second.statistics.imported_tokens
        assert answer(second, prompt, **greedy) == answer(engine(1, model_type), prompt, **greedy)
        assert second.statistics.imported_tokens - before == is_imported * saved.tokens


@families
def test_padding_and_idle_rows_leave_states_as_they_are(model_type: str) -> None:
    runner, ids = executor_of(case_of(model_type), FP32), torch.tensor([PROMPT[:8]] * 3)

    def states(padding: int, counts: list[int]) -> dict[str, torch.Tensor]:
        runner.reset(3)
        runner.step(ids[:, :4])
        outputs = runner.step(torch.nn.functional.pad(ids[:, 4:], (0, 3), value=padding), counts)
        return {spec.updated: outputs[spec.updated] for spec in runner.inputs if spec.feeder == "state"}

    runner.reset(3)
    short = runner.step(ids[:, :4])
    first, second = states(9, [4, 2, 0]), states(60, [4, 2, 0])
    assert first
    for name, state in first.items():
        assert torch.equal(state, second[name])
        assert torch.equal(state[2], short[name][2])
        assert not torch.equal(state[1], short[name][1])


@families
def test_a_call_that_does_not_go_on_from_the_states_is_refused(model_type: str) -> None:
    model = decoder(model_type, 2)

    def read(start: int, count: int) -> None:
        model.forward(Call(1, np.array([PROMPT[:count]]), np.array([start]), np.array([count])))

    read(0, 8)
    for start in (7, 9):
        with pytest.raises(ExecutionError, match=f"states of slot 1 have read 8 tokens, not {start}\n"):
            read(start, 1)
    for work in (
        lambda: model.cache.copy(1, 0, slice(0, 7)),
        lambda: model.cache.save(1, 7),
    ):
        with pytest.raises(ExecutionError, match="states of slot 1 have read 8 tokens, not 7\n"):
            work()
    read(8, 1)
    read(0, 3)
    assert model.cache.positions.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("kind", "model_type"),
    slow_unless(lambda _, family: family in STATES, itertools.product(GUESSED, RECURRENT)),
)
def test_speculation_changes_no_token(kind: str, model_type: str) -> None:
    """Rows accept different numbers of guesses; a draft model has states of its own, too."""
    proposer = LookupProposer(5, shortest=1) if kind == "lookup" else DraftProposer(decoder(DRAFT, SLOTS), 3)
    tested = engine(SLOTS, model_type, proposer=proposer)
    prompts = [tuple([5, 6, 7, 8] * 3), (11, 12, 13), tuple(range(20, 50)), (9,) * 10]
    own = (("max_tokens", 15), ("ignore_eos", True), *GUESSED[kind].items())
    asked = {f"r{index}": Asked(prompt, own) for index, prompt in enumerate(prompts)}
    found = run(tested, [each.request(name) for name, each in asked.items()])
    for name, each in asked.items():
        assert tuple(found[name].token_ids) == alone(each, model_type)
    statistics = tested.statistics
    assert statistics.drafted_tokens > 0
    if model_type == DRAFT and kind == "draft":
        assert statistics.accepted_tokens > 0.9 * statistics.drafted_tokens
    else:
        assert statistics.accepted_tokens < statistics.drafted_tokens


def test_a_slot_goes_back_to_its_mark_and_no_other_does() -> None:
    model = decoder(DRAFT, 2)

    def read(slot: int, ids: list[int], start: int) -> torch.Tensor:
        return model.forward(Call(slot, np.array([ids]), np.array([start]), np.array([len(ids)]))).clone()

    for slot in (0, 1):
        read(slot, PROMPT[:8], 0)
    model.cache.mark(slice(0, 2))
    for slot in (0, 1):
        read(slot, [5, 6, 7], 8)
    expected = read(1, [9], 11)
    model.cache.rewind([0])
    assert model.cache.positions.tolist() == [8, 12]
    read(0, [5, 6, 7], 8)
    assert torch.allclose(read(0, [9], 11), expected)


@families
@pytest.mark.parametrize("overlap", [False, True])
def test_a_preempted_request_goes_on_from_its_states(model_type: str, overlap: bool) -> None:
    tested, own = engine(1, model_type, overlap=overlap), (("max_tokens", 9), ("ignore_eos", True), ("temperature", 0))
    asked = {"late": Asked(tuple(PROMPT), own, 1), "urgent": Asked((7, 8, 9), own, 0)}
    tested.submit(asked["late"].request("late"))
    found = {each.request.id: each for _ in range(5) for each in tested.step()}
    tested.submit(asked["urgent"].request("urgent"))
    while tested.has_work:
        found |= {each.request.id: each for each in tested.step()}
    for name, each in asked.items():
        assert tuple(found[name].token_ids) == alone(each, model_type)
    statistics = tested.statistics
    assert statistics.preemptions == 1
    assert statistics.restored_tokens > len(PROMPT)
    assert statistics.prompt_tokens == len(PROMPT) + 3
    assert tested.free_slots == 1
    assert not tested.has_work
