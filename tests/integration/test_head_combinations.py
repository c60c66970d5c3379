"""Draft heads with several answers, stop strings, log probabilities, adapters, sleep, and other kinds of models."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.support import tiny_llm
from tests.support.adapters import save_adapter
from tests.support.decoders import model_of
from tests.support.eagle3 import Head, fields_of, save_head
from tests.support.generation import case_of
from tests.support.medusa import save_random
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.config.schema import ModelConfig
from trtkit.jobs.runner import new_runner
from trtkit.verification.jobs import VerifySettings as Checks
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle

KINDS = ("eagle3", "medusa")
HOT = SamplingParams(temperature=30.0, seed=3, max_tokens=20, ignore_eos=True)


def save_kind(folder: Path, kind: str, sizes: tuple[int, int], layers: int) -> Path:
    """Write a head for a model of these sizes and so many layers."""
    if kind == "medusa":
        return save_random(folder, sizes, heads=4)
    torch.manual_seed(2)
    ids = list(range(layers))[-3:]
    return save_head(
        folder, Head(fields_of(sizes[1], hidden_size=sizes[0], eagle_aux_hidden_state_layer_ids=ids), layers=len(ids))
    )


def build(folder: Path, quantize: dict[str, Any] | None = None, **llm: Any) -> Bundle:
    """Build `model` and `head` in a folder."""
    sizes = {"max_batch_size": 3, "max_sequence_length": 64, "max_prefill_length": 16}
    llm = {**sizes, "speculator": str(folder / "head"), **llm}
    config = {"source": {"hf": str(folder / "model")}, "precision": "fp32", "llm": llm, "quantize": quantize}
    return build_bundle(ModelConfig.model_validate(config), folder / "bundle", new_runner(), use_cache=False).bundle


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with a head of a kind, built to take adapters, and an adapter."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny_llm.save(folder / "model", num_hidden_layers=3)
    targets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    save_adapter(folder / "one", LlamaForCausalLM.from_pretrained(folder / "model"), target_modules=targets)
    save_kind(folder / "head", request.param, (48, len(tiny_llm.tokenizer())), 3)
    build(folder, lora={"max_rank_sum": 8})
    return folder


def answers(bundle: Path, prompts: Any, params: Any, **options: Any) -> tuple[list[Any], int]:
    """Return all answers, and how many guesses were right."""
    with LLM(bundle, **options) as llm:
        outputs = [each.outputs for each in llm.generate(prompts, params)]
        return outputs, llm.statistics.accepted_tokens


def check(folder: Path, params: Any, **options: Any) -> list[Any]:
    """Compare answers with and without guesses; return them."""
    (plain, none), (guessed, accepted) = (
        answers(folder / "bundle", tiny_llm.PROMPTS, params, speculate=speculate, **options) for speculate in (0, 4)
    )
    texts, probabilities = zip(*(split(each) for each in (plain, guessed)), strict=True)
    assert texts[0] == texts[1]
    np.testing.assert_allclose(*probabilities, atol=1e-4)  # several tokens at once round differently from one
    assert none == 0 < accepted
    return guessed


def split(outputs: list[Any]) -> tuple[list[Any], list[float]]:
    """Return all answers but for log probabilities, and these."""
    answers = [answer for of_prompt in outputs for answer in of_prompt]
    texts = [replace(each, cumulative_logprob=None, logprobs=None) for each in answers]
    tokens = [token for each in answers for token in each.logprobs or ()]
    return texts, [value for each in tokens for value in (each.logprob, *(value for _, value in each.top))]


def test_several_answers_of_a_prompt(folder: Path) -> None:
    outputs = check(folder, replace(HOT, n=3))
    assert all(len({each.token_ids for each in of_prompt}) == 3 for of_prompt in outputs)


def test_stop_strings_cut_what_was_guessed_after_them(folder: Path) -> None:
    texts = [of_prompt[0].text for of_prompt in check(folder, HOT)]
    stops = [text[7:9] for text in texts]
    params = [replace(HOT, stop=(stop,)) for stop in stops]
    for (output,), stop, text in zip(check(folder, params), stops, texts, strict=True):
        assert output.text == text[: text.index(stop)]
        assert output.finish_reason == "stop"


SETTINGS: list[dict[str, Any]] = [
    {"guided_regex": "[a-z]{5}( [a-z]{3}){3}", "ignore_eos": False},
    {"logprobs": 2, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2, "top_k": 9},
    {"min_tokens": 3, "ignore_eos": False, "prompt_logprobs": 1},
]


def test_settings_that_depend_on_earlier_tokens(folder: Path) -> None:
    outputs = check(folder, [replace(HOT, **each) for each in SETTINGS])
    assert re.fullmatch(SETTINGS[0]["guided_regex"], outputs[0][0].text)
    assert outputs[1][0].logprobs is not None


def test_adapters_of_one_batch(folder: Path) -> None:
    params = [replace(HOT, adapter=name) for name in (None, "one", "one", None)]
    outputs = check(folder, params, lora={"one": folder / "one"})
    assert outputs[1] != check(folder, HOT)[1]


def test_a_model_that_slept_guesses_the_same(folder: Path) -> None:
    with LLM(folder / "bundle", speculate=3) as llm:
        before = [each.outputs for each in llm.generate(tiny_llm.PROMPTS, HOT)]
        counts = llm.statistics.drafted_tokens, llm.statistics.accepted_tokens
        llm.sleep()
        llm.wake()
        assert [each.outputs for each in llm.generate(tiny_llm.PROMPTS, HOT)] == before
        assert (llm.statistics.drafted_tokens, llm.statistics.accepted_tokens) == counts
    assert counts[1] > 0


@pytest.mark.parametrize("kv", ["linear", "paged"])
def test_the_models_caches_in_8_bits(kv: str, folder: Path, tmp_path: Path) -> None:
    """The head's own cache, if it has one, keeps the network's type."""
    for name in ("model", "head"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "text.txt").write_text("Calibrate with this. " * 40, encoding="utf-8")
    data = {"data": str(tmp_path / "text.txt"), "samples": 2, "length": 32}
    bundle = build(tmp_path, {"method": "none", "kv_cache": "int8", "calibration": data}, kv=kv)
    check(tmp_path, HOT)
    report = verify_bundle(bundle, Checks(corners=True), new_runner())
    assert report.passed
    assert "guesses of the head" in [corner.name for corner in report.corners]


OTHERS: list[Any] = [("eagle3", "deepseek_v3", {})]
OTHERS += [
    pytest.param(*each, marks=pytest.mark.slow)
    for each in (
        ("eagle3", "deepseek_v3", {"kv": "paged", "latent_attention": "expanded"}),
        ("medusa", "deepseek_v3", {"kv": "paged"}),
        ("medusa", "gemma2", {}),
        ("medusa", "falcon_h1", {"kv": "paged"}),
    )
]


@pytest.mark.parametrize(("kind", "model_type", "llm"), OTHERS)
def test_other_models(kind: str, model_type: str, llm: dict[str, Any], tmp_path: Path) -> None:
    """Latent attention, and for Medusa heads a scaled embedding, capped logits and recurrent states."""
    case, changes = case_of(model_type), {"vocab_size": len(tiny_llm.tokenizer())}
    if model_type == "deepseek_v3":
        changes["first_k_dense_replace"] = 3  # torch multiplies no experts of odd sizes on a CPU
    model = model_of(replace(case, config={**case.config, **changes}))
    model.hf.save_pretrained(tmp_path / "model")
    tiny_llm.tokenizer().save_pretrained(tmp_path / "model")
    save_kind(tmp_path / "head", kind, (model.spec.hidden_size, model.spec.vocab_size), len(model.spec.layers))
    bundle = build(tmp_path, **llm)
    prompts = [[5, 6, 7, 8] * 3, [11, 12, 13], list(range(20, 50))]
    (plain, none), (guessed, accepted) = (answers(bundle.path, prompts, HOT, speculate=each) for each in (0, 4))
    assert guessed == plain
    assert none == 0 < accepted
    report = verify_bundle(bundle, Checks(corners=True), new_runner())
    assert report.passed
    assert "guesses of the head" in [corner.name for corner in report.corners]
