"""Bundles of a model and its Medusa heads, from config to answer; heads that do not fit are refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import tiny_llm
from tests.support.medusa import save_medusa, save_random, weights_of
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.builder.decoders import open_decoder
from trtkit.bundle.bundle import open_bundle
from trtkit.config.schema import ModelConfig
from trtkit.errors import RequestError, TrtkitError
from trtkit.jobs.runner import new_runner
from trtkit.resolve import resolve
from trtkit.verification.jobs import VerifySettings as Checks
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

SIZES = (48, len(tiny_llm.tokenizer()))
PROMPTS = [*tiny_llm.PROMPTS, [7, 8, 9] * 9]
SAMPLED = [
    SamplingParams(temperature=t, seed=seed, max_tokens=14, ignore_eos=True)
    for seed, t in enumerate((0.0, 0.8, 30.0, 0.0, 30.0))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and heads for it."""
    folder = tmp_path_factory.mktemp("medusa")
    tiny_llm.save(folder / "model")
    save_random(folder / "heads", SIZES, heads=4)
    return folder


def config_of(folder: Path, heads: Path | None = None, precision: str = "fp32", **llm: Any) -> ModelConfig:
    sizes = {"max_batch_size": 4, "max_sequence_length": 64, "max_prefill_length": 16}
    llm = {**sizes, "speculator": str(heads or folder / "heads"), **llm}
    return ModelConfig.model_validate({"source": {"hf": str(folder / "model")}, "precision": precision, "llm": llm})


def answers(bundle: Path, **options: Any) -> tuple[list[tuple[int, ...]], int, int]:
    """Return the tokens of requests that share batches, and how many were guessed and accepted."""
    with LLM(bundle, **options) as llm:
        tokens = [output.outputs[0].token_ids for output in llm.generate(PROMPTS * 2, SAMPLED * 2)]
        return tokens, llm.statistics.drafted_tokens, llm.statistics.accepted_tokens


@pytest.mark.parametrize("kv", ["linear", "paged"])
def test_bundle_answers_as_without_heads(kv: str, folder: Path) -> None:
    bundle = build_bundle(config_of(folder, kv=kv), folder / kv, new_runner(), use_cache=False).bundle
    plain, no_guesses, _ = answers(bundle.path, speculate=0)
    three, four = answers(bundle.path), answers(bundle.path, speculate=4)
    assert three[0] == four[0] == plain
    assert no_guesses == 0 < three[2] < three[1] < four[1]
    with pytest.raises(RequestError, match="5 tokens to guess; the bundle's heads guess 4"):
        LLM(bundle, speculate=5)


def test_bundle_is_verified_inspected_and_planned(folder: Path, trtkit: Callable[..., Ran]) -> None:
    words = f"{{max_batch_size: 2, max_sequence_length: 64, max_prefill_length: 16, speculator: {folder}/heads}}"
    (folder / "m.yaml").write_text(f"source: {{hf: {folder}/model}}\nprecision: fp32\nllm: {words}\n")
    bundle = folder / "shown"
    trtkit("build", folder / "m.yaml", "-o", bundle, "--quiet")
    report = verify_bundle(open_bundle(bundle), Checks(corners=True), new_runner())
    assert report.passed
    (corner,) = [corner for corner in report.corners if corner.name == "guesses of the head"]
    assert corner.relative_rms_error < 1e-5
    weights = sum(weight.numel() for weight in weights_of(SIZES, 4, 1).values())
    record = open_bundle(bundle).manifest.decoder
    assert record is not None
    assert record.speculator is not None
    assert record.speculator.model_dump() == {
        "parameters": weights,
        "weight_bytes": 4 * weights,
        "kv_bytes_per_token": 0,
        "kv_bytes_per_slot": 0,
        "state_bytes_per_slot": 0,
        "model_type": "medusa",
        "most_tokens": 4,
    }
    assert "no KV cache; at most 4 tokens in a step" in " ".join(trtkit("inspect", bundle).out.split())
    assert trtkit("plan", folder / "m.yaml", "--json").json()["gpus"][0]["memory"]["speculator_bytes"] == 4 * weights


def test_heads_that_share_the_models_tied_matrix_in_16_bits(tmp_path: Path) -> None:
    tiny_llm.save(tmp_path / "model", tie_word_embeddings=True)
    weights = {name: each for name, each in weights_of(SIZES, 2, 2).items() if not name.endswith(".2.weight")}
    heads = save_medusa(tmp_path / "heads", weights, medusa_num_heads=2, medusa_num_layers=2)
    bundle = build_bundle(config_of(tmp_path, heads, "fp16"), tmp_path / "bundle", new_runner()).bundle
    assert verify_bundle(bundle, Checks(corners=True), new_runner()).passed
    with LLM(bundle) as llm:  # both heads guess, by default
        llm.generate(PROMPTS, SAMPLED)
        assert 0 < llm.statistics.accepted_tokens < llm.statistics.drafted_tokens


def rewrite(**changes: Any) -> Callable[[Path], None]:
    def change(heads: Path) -> None:
        fields = json.loads((heads / "config.json").read_text())
        (heads / "config.json").write_text(json.dumps({**fields, **changes}))

    return change


def reweigh(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(heads: Path) -> None:
        weights = load_file(heads / "medusa_lm_head.safetensors")
        change(weights)
        save_file(weights, heads / "medusa_lm_head.safetensors")

    return apply


def pickled(heads: Path) -> None:
    (heads / "medusa_lm_head.safetensors").rename(heads / "medusa_lm_head.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewrite(vocab_size=999), "`vocab_size` of the head is 999, the model's is 320"),
        (rewrite(hidden_size=64), "`hidden_size` of the head is 64, the model's is 48"),
        (rewrite(medusa_num_heads=0), "`medusa_num_heads` is `0`; expected an integer from 1 to 64"),
        (rewrite(medusa_num_heads=True), "`medusa_num_heads` is `True`; expected an integer from 1 to 64"),
        (rewrite(medusa_num_heads=None), "field `medusa_num_heads` is missing"),
        (rewrite(num_heads=2), "`num_heads` is `2`, and `medusa_num_heads` is `3`"),
        (rewrite(medusa_num_layers=2), r"`0.1.linear.weight` is missing, of shape \[48, 48\]"),
        (rewrite(medusa_num_layers=-1), "`medusa_num_layers` is `-1`; expected an integer up to"),
        (rewrite(medusa_num_heads=4), r"`3.0.linear.weight` is missing, of shape \[48, 48\]"),
        (rewrite(version=3), "`version` is `3`; only 1 and 2 are supported"),
        (rewrite(version="2"), "`1.1.weight` is not a weight of this head"),
        (rewrite(truncated_vocab_size=400), "`truncated_vocab_size` is 400, of 320 tokens"),
        (rewrite(truncated_vocab_size=40), "`token_map` is missing, which names the model's tokens of the heads' 40"),
        (rewrite(medusa_choices=[[0]]), r"`medusa_choices` is `\[\[0\]\]`"),
        (rewrite(medusa_fc_bias=False), "`0.0.linear.bias` is not a weight of this head"),
        (rewrite(original_lm_head=True), "`1.1.weight` is not a weight of this head"),
        (reweigh(lambda w: w.pop("1.1.weight")), r"`1.1.weight` is missing, of shape \[320, 48\]"),
        (
            reweigh(lambda w: w.update({"0.1.weight": w["0.1.weight"][:300].clone()})),
            r"has shape \[300, 48\]; expected",
        ),
        (reweigh(lambda w: w.update({"extra": torch.ones(2)})), "`extra` is not a weight of this head"),
        (pickled, r"the head is a pickle \(`medusa_lm_head.pt`\), which can run code"),
    ],
)
def test_heads_that_do_not_fit_are_refused(change: Callable[[Path], None], message: str, folder: Path) -> None:
    heads = save_random(folder / "refused", SIZES)
    for each in heads.glob("*.pt"):
        each.unlink()
    change(heads)
    with pytest.raises(TrtkitError, match=message):
        assert open_decoder(resolve(config_of(folder, heads))).speculator


@pytest.mark.parametrize("tokens", [[1, 1], [1], [-1, 3], [4, 320], [0.5, 1.5]])
def test_tables_that_do_not_name_tokens_are_refused(tokens: list[float], folder: Path) -> None:
    weights = {**weights_of(SIZES, 1, 0), "token_map": torch.tensor(tokens)}
    fields = {"medusa_num_heads": 1, "medusa_num_layers": 0, "truncated_vocab_size": 2}
    heads = save_medusa(folder / "tokens", weights, **fields)
    with pytest.raises(TrtkitError, match="`token_map` does not name 2 different tokens below 320"):
        assert open_decoder(resolve(config_of(folder, heads))).speculator
