"""SmolLM2-135M-Instruct with real weights: tokens equal transformers' `generate`, alone and in a batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from tests.support.decoders import rtx
from tests.support.generation import settings
from trtkit.builder.decoders import OpenedDecoder, open_decoder
from trtkit.config import load_config
from trtkit.config.llm import LlmOptions
from trtkit.llm.engine import EngineOptions, LLMEngine, LookupProposer, Request
from trtkit.llm.execution import ReferenceDecoder, decoder_network
from trtkit.resolve import resolve
from trtkit.verification.decoder_reference import TransformersReference

pytestmark = pytest.mark.slow

EOS, VOCABULARY, NEW_TOKENS = 2, 49152, 16
PROMPTS = ([22007, 6463, 314], [504, 3575, 282, 4649, 314], [1604, 216, 17, 28, 216, 18, 28, 216, 19, 28])
BAD_WORDS = [[253], [7042], [260, 26589]]
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"temperature": 0}, {}),
    "repetition": ({"temperature": 0, "repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    "words": (
        {"temperature": 0, "bad_words": BAD_WORDS, "no_repeat_ngram_size": 2, "min_tokens": 10},
        {"bad_words_ids": BAD_WORDS, "no_repeat_ngram_size": 2, "min_new_tokens": 10},
    ),
    **{
        f"{beams} beams, penalty {penalty}": ({"num_beams": beams, "length_penalty": penalty},) * 2
        for beams, penalty in ((2, 0.5), (4, 1.0), (4, 2.0))
    },
}


@cache
def model() -> OpenedDecoder:
    """The shipped config in fp32, with short caches."""
    options = LlmOptions(max_batch_size=8, max_sequence_length=64, max_prefill_length=16)
    config = load_config("llama").model_copy(update={"precision": "fp32", "llm": options})
    return open_decoder(resolve(config))


@cache
def engine() -> LLMEngine:
    return LLMEngine(ReferenceDecoder(decoder_network(rtx(), model()), 8))


@cache
def reference() -> Any:
    return TransformersReference(model().source).model


def theirs(prompt: list[int], **params: Any) -> list[int]:
    ids = torch.tensor([prompt])
    fixed = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": EOS, "pad_token_id": EOS}
    with torch.inference_mode():
        found = reference().generate(ids, attention_mask=torch.ones_like(ids), **fixed, **params)
    answer = found[0, len(prompt) :].tolist()
    return answer[: answer.index(EOS) + 1] if EOS in answer else answer


def ours(tested: LLMEngine, params: dict[str, Any]) -> list[list[int]]:
    for index, prompt in enumerate(PROMPTS):
        tested.submit(Request(str(index), prompt, settings(VOCABULARY, max_tokens=NEW_TOKENS, **params)))
    found: dict[str, list[int]] = {}
    while tested.has_work:
        found |= {finished.request.id: finished.token_ids for finished in tested.step()}
    return [found[str(index)] for index in range(len(PROMPTS))]


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_equal_transformers(name: str) -> None:
    mine, other = SETTINGS[name]
    assert ours(engine(), mine) == [theirs(prompt, **other) for prompt in PROMPTS]


def test_speculative_tokens_equal_transformers() -> None:
    options = EngineOptions(proposer=LookupProposer(4))
    tested = LLMEngine(ReferenceDecoder(decoder_network(rtx(), model(), "all"), 4), options)
    assert ours(tested, {"temperature": 0}) == [theirs(prompt) for prompt in PROMPTS]
    assert tested.statistics.accepted_tokens > 0
