"""Decoding gives the tokens of transformers' `generate`, on tiny models of many families and on SmolLM2."""

from __future__ import annotations

import copy
import itertools
from functools import cache
from typing import Any

import pytest
import torch

from tests.selection import slow_unless
from tests.support import recurrent_cases
from tests.support.decoders import model_of
from tests.support.generation import EOS, case_of, decoder, run, settings
from trtkit.llm.engine import EngineOptions, LLMEngine, LookupProposer, Request

RECURRENT = tuple(dict.fromkeys(family for _, family, _, _ in recurrent_cases.RECURRENT))
CACHES = ("deepseek_v3", "gemma3n_text", "gemma4_text")  # one vector a token; caches that several layers read
FAMILIES = ("llama", "qwen3", "gemma3_text", "gpt2", "mixtral", "bloom", "phi3", "gpt_neox", *CACHES, *RECURRENT)
PROMPTS = ([5, 6, 7], list(range(10, 30)), [9, 9, 9, 9, 11], [3])
NEW_TOKENS = 18
BAD_WORDS = [[12], [40, 41], [9, 9]]
# Ours beside transformers' settings.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {}),
    "repetition penalty": ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    "repetition reward": ({"repetition_penalty": 0.8}, {"repetition_penalty": 0.8}),
    "no repeated pair": ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    "no repeated triple": ({"no_repeat_ngram_size": 3}, {"no_repeat_ngram_size": 3}),
    "bad words": ({"bad_words": BAD_WORDS}, {"bad_words_ids": BAD_WORDS}),
    "min length": ({"min_tokens": 9}, {"min_new_tokens": 9}),
    "logit bias": ({"logit_bias": {2: 1.5, 33: 2.0}}, {"sequence_bias": [[[2], 1.5], [[33], 2.0]]}),
    "all": (
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words": BAD_WORDS, "min_tokens": 5},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words_ids": BAD_WORDS, "min_new_tokens": 5},
    ),
}
BEAMS: dict[str, dict[str, Any]] = {
    **{
        f"{beams} beams, penalty {penalty}": {"num_beams": beams, "length_penalty": penalty}
        for beams in (2, 4)
        for penalty in (0.5, 1.0, 2.0)
    },
    "early": {"num_beams": 3, "early_stopping": True},
    "never": {"num_beams": 3, "early_stopping": "never", "length_penalty": 1.5},
    "negative penalty": {"num_beams": 3, "length_penalty": -1.0},
    "repetition": {"num_beams": 4, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
}

pytestmark = [
    pytest.mark.usefixtures("caches"),
    pytest.mark.parametrize("caches", ["linear", pytest.param("paged", marks=pytest.mark.slow)], indirect=True),
]


def is_kept(family: str, name: str) -> bool:
    """Whether a family's setting is tested every time: every setting on one family, the widest ones on all."""
    return family == "llama" or name in {"greedy", "all", "repetition"}


@cache
def transformers_model(family: str) -> Any:
    """A family's tiny model in fp64, as our engine computes it."""
    return copy.deepcopy(model_of(case_of(family)).hf).double()


def theirs(family: str, prompt: list[int], count: int = 1, **params: Any) -> list[list[int]]:
    """Return transformers' answers, cut behind their end-of-sequence token."""
    ids = torch.tensor([prompt])
    fixed = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": EOS, "pad_token_id": EOS}
    with torch.inference_mode():
        found = transformers_model(family).generate(
            ids, attention_mask=torch.ones_like(ids), num_return_sequences=count, **{**fixed, **params}
        )
    return [_cut(row[len(prompt) :].tolist()) for row in found]


def _cut(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS) + 1] if EOS in ids else ids


@cache
def engine_of(family: str) -> LLMEngine:
    return LLMEngine(decoder(family, 8), EngineOptions(min_shared_tokens=8))


def ours(tested: LLMEngine, params: dict[str, Any], count: int = 1) -> list[list[list[int]]]:
    """Return the answers to all prompts, computed together."""
    for index, prompt in enumerate(PROMPTS):
        tested.submit(Request(str(index), prompt, settings(max_tokens=NEW_TOKENS, **params)))
    found: dict[str, list[list[int]]] = {}
    while tested.has_work:
        for finished in tested.step():
            beams = [beam.token_ids for beam in finished.beams[:count]]
            found[finished.request.id] = beams or [finished.token_ids]
    return [found[str(index)] for index in range(len(PROMPTS))]


@pytest.mark.parametrize(("family", "name"), slow_unless(is_kept, itertools.product(FAMILIES, SETTINGS)))
def test_greedy_tokens_equal_transformers(family: str, name: str) -> None:
    mine, other = SETTINGS[name]
    got = ours(engine_of(family), {"temperature": 0, **mine})
    assert got == [theirs(family, prompt, **other) for prompt in PROMPTS]


@pytest.mark.parametrize(("family", "name"), slow_unless(is_kept, itertools.product(FAMILIES, BEAMS)))
def test_beams_equal_transformers(family: str, name: str) -> None:
    params = BEAMS[name]
    got = ours(engine_of(family), params, count=2)
    assert got == [theirs(family, prompt, 2, **params) for prompt in PROMPTS]


DRAWN_BEAMS: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 3},
    "hot": {"num_beams": 4, "temperature": 1.7},
    "filters": {"num_beams": 3, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
    "filters that leave one token": {"num_beams": 3, "top_k": 1, "min_p": 0.9},
    "early": {"num_beams": 2, "early_stopping": True, "length_penalty": 0.5},
    "repetition": {"num_beams": 2, "repetition_penalty": 1.2},
}


@pytest.mark.parametrize(
    ("family", "name"), slow_unless(lambda family, _: family == "llama", itertools.product(FAMILIES, DRAWN_BEAMS))
)
def test_drawn_beams_equal_transformers(family: str, name: str) -> None:
    params, wanted = DRAWN_BEAMS[name], []
    for seed, prompt in enumerate(PROMPTS):
        torch.manual_seed(seed)
        wanted.append(theirs(family, prompt, 2, **{"top_k": 0, "do_sample": True, **params}))
    drawn = [settings(max_tokens=NEW_TOKENS, do_sample=True, seed=seed, **params) for seed in range(len(PROMPTS))]
    requests = (Request(str(seed), prompt, drawn[seed]) for seed, prompt in enumerate(PROMPTS))
    finished = run(engine_of(family), requests)
    got = [[beam.token_ids for beam in finished[str(seed)].beams[:2]] for seed in range(len(PROMPTS))]
    assert got == wanted
    assert got != [theirs(family, prompt, 2, num_beams=params["num_beams"]) for prompt in PROMPTS]


def diverse(prompt: list[int], *, beams: int, groups: int, penalty: float) -> list[list[int]]:
    """Return the answers of diverse beam search (arXiv:1610.02424, algorithm 1) by Llama, written as it is there."""
    sets: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(groups)]
    for _ in range(NEW_TOKENS):
        chosen: list[int] = []
        for index, group in enumerate(sets):
            ids = torch.tensor([[*prompt, *tokens] for _, tokens in group])
            with torch.inference_mode():
                logs = transformers_model("llama")(ids).logits[:, -1].float().log_softmax(-1)
            candidates = [
                (score + float(logs[row, token]) - penalty * chosen.count(token), [*tokens, token])
                for row, (score, tokens) in enumerate(group)
                for token in range(logs.shape[1])
            ]
            sets[index] = sorted(candidates, key=lambda candidate: -candidate[0])[: beams // groups]
            chosen += [tokens[-1] for _, tokens in sets[index]]
    return [tokens for _, tokens in sorted(itertools.chain(*sets), key=lambda candidate: -candidate[0])]


@pytest.mark.parametrize(("beams", "groups", "penalty"), [(4, 2, 0.5), (3, 3, 1.5), (6, 2, 5.0)])
def test_groups_of_beams_are_those_of_diverse_beam_search(beams: int, groups: int, penalty: float) -> None:
    sizes = {"num_beams": beams, "num_beam_groups": groups, "diversity_penalty": penalty}
    grouped = settings(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, **sizes)
    requests = (Request(str(index), prompt, grouped) for index, prompt in enumerate(PROMPTS))
    finished = run(engine_of("llama"), requests)
    for index, prompt in enumerate(PROMPTS):
        got = [beam.token_ids for beam in finished[str(index)].beams]
        assert got == diverse(prompt, beams=beams, groups=groups, penalty=penalty)
        assert len(set(map(tuple, got))) == beams


STATES = ("lfm2", "qwen3_5_text", "mamba2")
"""A family of each kind of states: guesses that fail are taken back from caches and states alike."""


@pytest.mark.parametrize("family", slow_unless(lambda family: family not in RECURRENT or family in STATES, FAMILIES))
def test_speculative_greedy_tokens_equal_transformers(family: str) -> None:
    tested = LLMEngine(decoder(family, 4, has_all_logits=True), EngineOptions(proposer=LookupProposer(4, shortest=1)))
    assert ours(tested, {"temperature": 0}) == [theirs(family, prompt) for prompt in PROMPTS]
    assert tested.statistics.drafted_tokens > 0


def test_prompt_and_token_logprobs_equal_transformers() -> None:
    tested = LLMEngine(decoder("llama", 2, has_all_logits=True))
    prompt = PROMPTS[1]
    asked = settings(max_tokens=5, temperature=0, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    tested.submit(Request("r", prompt, asked))
    found = next(finished for _ in range(20) for finished in tested.step())
    ids = torch.tensor([[*prompt, *found.token_ids]])
    with torch.inference_mode():
        logs = transformers_model("llama")(ids).logits[0].float().log_softmax(-1)
    reported = [*found.request.prompt_logprobs, *found.request.logprobs]
    assert len(reported) == len(ids[0]) - 1
    for place, item in enumerate(reported):
        assert item.token == ids[0, place + 1]
        assert item.logprob == pytest.approx(float(logs[place, item.token]), abs=1e-5)
        top = logs[place].topk(2 if place + 1 < len(prompt) else 3)
        assert [token for token, _ in item.top] == top.indices.tolist()
        assert [value for _, value in item.top] == pytest.approx(top.values.tolist(), abs=1e-5)
