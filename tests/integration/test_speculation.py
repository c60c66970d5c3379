"""Speculation changes no token and no distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from tests.support.decoders import model_of
from tests.support.generation import (
    LENGTH,
    SLOTS,
    Asked,
    alone,
    case_of,
    decoder,
    engine,
    run,
    settings,
)
from trtkit.errors import RequestError
from trtkit.llm.engine import DraftProposer, EngineOptions, LLMEngine, LookupProposer, Request
from trtkit.llm.engine.drafts import Drafts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.sampling.settings import Settings
    from trtkit.llm.sequences import Ints, Sequences

pytestmark = pytest.mark.usefixtures("caches")


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 0.9, "seed": 3}, {"temperature": 1.5, "top_k": 9, "seed": 4}]
)
@pytest.mark.parametrize("kind", ["lookup", "draft", "itself"])
def test_speculation_changes_no_token(kind: str, params: dict[str, Any]) -> None:
    proposer = {
        "lookup": lambda: LookupProposer(5, shortest=1),
        "draft": lambda: DraftProposer(decoder("qwen3", SLOTS), 3),
        "itself": lambda: DraftProposer(decoder("llama", SLOTS), 3),
    }[kind]()
    tested = engine(SLOTS, proposer=proposer)
    prompts = [tuple([5, 6, 7, 8] * 3), (11, 12, 13), tuple(range(20, 50)), (9,) * 10, tuple(range(3, 60))]
    asked = {
        f"r{index}": Asked(prompt, (("max_tokens", 25), ("ignore_eos", True), *params.items()))
        for index, prompt in enumerate(prompts)
    }
    found = run(tested, [each.request(name) for name, each in asked.items()])
    for name, each in asked.items():
        assert tuple(found[name].token_ids) == alone(each)
    statistics = tested.statistics
    assert statistics.drafted_tokens > 0
    assert statistics.accepted_tokens <= statistics.drafted_tokens
    if kind == "itself":
        assert statistics.accepted_tokens > 0.9 * statistics.drafted_tokens
        assert statistics.steps < 25


@pytest.mark.parametrize("count", [500, pytest.param(3000, marks=pytest.mark.slow)])
def test_speculative_draws_follow_the_models_distribution(count: int) -> None:
    tested, prompt = engine(16, proposer=DraftProposer(decoder("qwen3", 16), 2)), [5, 6, 7]
    requests = [
        Request(str(seed), prompt, settings(max_tokens=4, temperature=0.7, seed=seed, ignore_eos=True))
        for seed in range(count)
    ]
    found = run(tested, requests)
    assert tested.statistics.accepted_tokens > 0
    pairs = np.zeros((67, 67))
    for finished in found.values():
        pairs[tuple(finished.token_ids[:2])] += 1
    hf = model_of(case_of("llama"))
    first = torch.softmax(hf.logits(torch.tensor([prompt]))[0, -1] / 0.7, -1)
    second = torch.softmax(hf.logits(torch.tensor([[*prompt, token] for token in range(67)]))[:, -1] / 0.7, -1)
    expected = (first[:, None] * second).double().numpy() * count
    common = expected > 5
    observed = np.append(pairs[common], pairs[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


class Wrong(LookupProposer):
    """Guesses that are always there, and hardly ever come true."""

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:  # noqa: ARG002
        return Drafts(np.tile(np.arange(3, 3 + most), (len(slots), 1)))


def test_guesses_leave_a_long_prompt_alone_that_a_padded_call_covers() -> None:
    """Rows that CUDA graphs add to a call write behind what is cached, also where little room is left."""
    greedy = (("temperature", 0), ("ignore_eos", True))
    long = Asked(tuple((np.arange(62) * 37 % 61 + 3).tolist()), (*greedy, ("max_tokens", 3)))
    tested = engine(SLOTS, proposer=Wrong(5), token_budget=18)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tested.execution, "slots_to_run", lambda _slots: slice(0, SLOTS))
        short = [Asked((7 + index,), (*greedy, ("max_tokens", 25))) for index in range(3)]
        found = run(tested, [each.request(str(index)) for index, each in enumerate([*short, long])])
    assert tuple(found["3"].token_ids) == alone(long)


def test_guesses_come_true_up_to_the_last_place_of_a_slot() -> None:
    """Next to a sequence that begins: its row has as many places as there is room for."""
    greedy = (("temperature", 0), ("ignore_eos", True), ("max_tokens", 40))
    asked = [Asked(tuple(range(3, 3 + size)), greedy) for size in (52, 45, 9)]
    tested = engine(SLOTS, proposer=DraftProposer(decoder("llama", SLOTS), 5), token_budget=14)
    found = run(tested, [each.request(str(number)) for number, each in enumerate(asked)])
    for number, each in enumerate(asked):
        assert tuple(found[str(number)].token_ids) == alone(each)
    assert len(asked[0].prompt) + len(found["0"].token_ids) == LENGTH + 1


def test_speculation_without_all_logits_is_refused() -> None:
    with pytest.raises(RequestError, match="speculation needs logits of every token"):
        LLMEngine(decoder("llama", 2), EngineOptions(proposer=LookupProposer(3)))
