"""Bundles of Gemma 4 with its assistant, from config to answer; assistants that do not fit are refused by name."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma4AssistantForCausalLM

from tests.support import tiny_llm
from tests.support.assistants import assistant, save_assistant, save_model
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.builder.decoders import open_decoder
from trtkit.builder.speculators import open_config_speculator
from trtkit.config.schema import ModelConfig, Source
from trtkit.drafts.gemma4_assistant.reference import all_layers_may_share
from trtkit.errors import ConfigError, TrtkitError
from trtkit.jobs.runner import new_runner
from trtkit.resolve import resolve
from trtkit.verification.jobs import VerifySettings as Checks
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VOCABULARY = len(tiny_llm.tokenizer())
PROMPTS = [*tiny_llm.PROMPTS, [7, 8, 9] * 9]
SAMPLED = [
    SamplingParams(temperature=t, seed=seed, max_tokens=14) for seed, t in enumerate((0.0, 0.8, 30.0, 0.0, 30.0))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 4 and its assistant, whose tokens are in clusters."""
    folder = tmp_path_factory.mktemp("assistant")
    save_model(folder / "model")
    clusters = {"use_ordered_embeddings": True, "num_centroids": 16, "centroid_intermediate_top_k": 3}
    save_assistant(folder / "assistant", assistant({"vocab_size": VOCABULARY}, **clusters).bfloat16())  # as published
    return folder


def config_of(folder: Path, head: Path | None = None, **changes: Any) -> ModelConfig:
    sizes = {"max_batch_size": 3, "max_sequence_length": 64, "max_prefill_length": 16}
    llm = {**sizes, "speculator": str(head or folder / "assistant"), **changes.pop("llm", {})}
    return ModelConfig.model_validate(
        {"source": {"hf": str(folder / "model")}, "precision": "fp32", "llm": llm, **changes}
    )


def with_transformers(folder: Path, prompt: str) -> tuple[int, ...]:
    """Return what transformers answers greedily with the assistant."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    with all_layers_may_share():
        theirs = Gemma4AssistantForCausalLM.from_pretrained(folder / "assistant", dtype=torch.float32).eval()
    theirs.generation_config.num_assistant_tokens = 3
    ids = torch.tensor([tiny_llm.tokenizer()(prompt).input_ids])
    answer = model.generate(ids, assistant_model=theirs, do_sample=False, max_new_tokens=14)
    return tuple(answer[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("kv", ["linear", pytest.param("paged", marks=pytest.mark.slow)])
def test_bundle_with_an_assistant_answers_as_without(kv: str, folder: Path) -> None:
    config = config_of(folder, llm={"kv": kv})
    bundle = build_bundle(config, folder / kv, new_runner(), use_cache=False).bundle
    record = bundle.manifest.decoder.speculator
    assert (record.model_type, record.kv_bytes_per_token) == ("gemma4_assistant", 0)
    inputs = bundle.manifest.stage("speculator").inputs
    assert {each.name for each in inputs if each.feeder == "cache"} < {
        each.name for each in bundle.manifest.stages[-1].inputs
    }
    answers, guessed = {}, {}
    for speculate in (0, None, 5):
        with LLM(bundle, speculate=speculate) as llm:
            answers[speculate] = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, SAMPLED)]
            guessed[speculate] = llm.statistics.drafted_tokens
    assert answers[0] == answers[None] == answers[5]
    assert guessed[0] == 0 < guessed[None] < guessed[5]
    assert answers[0][0] == with_transformers(folder, PROMPTS[0])
    report = verify_bundle(bundle, Checks(corners=True), new_runner())
    assert report.passed
    (corner,) = [corner for corner in report.corners if corner.name == "guesses of the head"]
    assert corner.relative_rms_error < 1e-5


def rewrite(name: str, value: Any, section: str | None = "text_config") -> Callable[[Path], None]:
    def change(head: Path) -> None:
        fields = json.loads((head / "config.json").read_text())
        (fields[section] if section else fields)[name] = value
        (head / "config.json").write_text(json.dumps(fields))

    return change


def reweigh(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(head: Path) -> None:
        weights = load_file(head / "model.safetensors")
        change(weights)
        save_file(weights, head / "model.safetensors")

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewrite("model_type", "gemma4_unified_assistant", None), "names `Gemma4AssistantForCausalLM`"),
        (rewrite("model_type", "gemma4_unified_text"), "`text_config` must be that of a `gemma4_text`"),
        (rewrite("text_config", None, None), "`text_config` is missing"),
        (rewrite("backbone_hidden_size", 48, None), "`backbone_hidden_size` of the head is 48, the model's is 42"),
        (rewrite("num_centroids", 7, None), "`num_centroids` is 7, which does not divide 320 tokens"),
        (rewrite("centroid_intermediate_top_k", 17, None), "`centroid_intermediate_top_k` is 17, of 16 clusters"),
        (rewrite("num_mtp_layers", 2, None), "`num_mtp_layers` is `2`"),
        (rewrite("vocab_size", 352), "`vocab_size` of the head is 352, the model's is 320"),
        (rewrite("head_dim", 12), "`sliding_attention`: the head size of the head is 12, the model's is 8"),
        (rewrite("num_key_value_heads", 1), "`full_attention`: the number of key/value heads of the head is 1"),
        (rewrite("num_kv_shared_layers", 1), "`num_kv_shared_layers` is `1`; all 3 layers"),
        (rewrite("hidden_size_per_layer_input", 6), "`hidden_size_per_layer_input` is `6`; an assistant has 0"),
        (rewrite("enable_moe_block", True), "`enable_moe_block` is `True`"),
        (rewrite("use_double_wide_mlp", True), "`use_double_wide_mlp` is `True`"),
        (rewrite("use_bidirectional_attention", "all"), "is `all`, only `vision` is supported"),
        (rewrite("attn_logit_softcapping", 5.0), "`attn_logit_softcapping` is `5.0`"),
        (reweigh(lambda w: w["masked_embedding.token_ordering"].fill_(3)), "does not name each of 320 tokens once"),
        (reweigh(lambda w: w.pop("pre_projection.weight")), r"`pre_projection.weight` is missing, of shape \[20, 84\]"),
        (reweigh(lambda w: w.update(extra=w["model.norm.weight"].clone())), "`extra` is not a weight of this head"),
    ],
)  # fmt: skip
def test_assistant_that_does_not_fit_is_refused(
    change: Callable[[Path], None], message: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "assistant", tmp_path / "assistant")
    change(tmp_path / "assistant")
    with pytest.raises(TrtkitError, match=message):
        assert open_decoder(resolve(config_of(folder, tmp_path / "assistant"))).speculator


@pytest.mark.slow
def test_pages_of_an_assistant_are_the_models(folder: Path) -> None:
    """A limit on memory gives as many pages with guesses as without, few enough that requests give way."""
    bundle = build_bundle(config_of(folder, llm={"kv": "paged"}), folder / "few", new_runner()).bundle
    params = [SamplingParams(temperature=30, seed=seed, max_tokens=40) for seed in range(len(PROMPTS))]
    answers, pages = {}, {}
    for speculate in (0, 3):
        with LLM(bundle, speculate=speculate, cache_gib=6e-5) as llm:
            answers[speculate] = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
            pages[speculate] = llm.frontend.execution.cache.view(slice(0, 1))["past_key_1"].shape[0]
            assert llm.statistics.preemptions > 0
            assert (llm.statistics.accepted_tokens > 0) == (speculate > 0)
    assert answers[0] == answers[3]
    assert pages[0] == pages[3]


def test_models_without_assistants_are_refused(folder: Path, tmp_path: Path) -> None:
    tiny_llm.save(tmp_path / "model")
    with pytest.raises(ConfigError, match="a head that guesses tokens does not work here") as error:
        assert open_decoder(resolve(config_of(tmp_path, folder / "assistant"))).speculator
    assert "reads the caches of a `gemma4_text`, and the model is a `llama`" in str(error.value)
    save_model(tmp_path / "full", layer_types=["full_attention"] * 5)
    config = config_of(folder).model_copy(update={"source": Source(hf=str(tmp_path / "full"))})
    with pytest.raises(ConfigError) as error:
        assert open_decoder(resolve(config)).speculator
    assert "no layer of type `sliding_attention`" in str(error.value)


def test_an_assistant_reads_no_quantized_caches(folder: Path) -> None:
    config = config_of(folder, folder / "assistant")
    spec = open_decoder(resolve(config)).spec
    with pytest.raises(ConfigError, match="the head reads the model's caches, which are quantized"):
        open_config_speculator(config, spec, has_quantized_caches=True)
