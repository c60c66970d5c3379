"""A decoder-only LLM from a folder is built and verified; refusals say why."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support import tiny_llm
from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of
from trtkit.builder.decoders import checked_spec, llm_options, rope_note
from trtkit.config.llm import LlmOptions
from trtkit.config.load import load_config
from trtkit.network.input_spec import TOKEN_TILE
from trtkit.sources.decoder_source import open_hf_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

SMALL = ["--set", "llm.max_batch_size=3", "--set", "llm.max_sequence_length=32", "--set", "llm.max_prefill_length=16"]


def saved(model_type: str, folder: Path) -> Path:
    """Write the first tiny model of a family as transformers saves it."""
    case = next(case for case in CASES if case.model_type == model_type)
    model_of(case).hf.save_pretrained(folder)
    return folder


def edit(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


@pytest.fixture
def llama(workspace: Path) -> Path:
    """A folder with a tiny Llama, and a config of two sections that names it."""
    folder = saved("llama", workspace / "llama")
    (workspace / "m.yaml").write_text(
        "source: {hf: llama}\nllm: {max_batch_size: 3, max_sequence_length: 32, max_prefill_length: 16}\n"
    )
    return folder


@pytest.mark.parametrize(
    ("name", "model_type"),
    [("llama", "llama"), ("qwen3", "qwen3"), ("gemma3", "gemma3_text"), ("gpt2", "gpt2"), ("mixtral", "mixtral")],
)
def test_shipped_llm_config_builds_a_folder_of_its_family(
    name: str, model_type: str, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    folder = saved(model_type, workspace / "model")
    ran = trtkit("build", name, "--set", f"source.hf={folder}", *SMALL, "--json")
    assert ran.code == 0, ran.err
    manifest = ran.json()["manifest"]
    assert manifest["model_type"] == model_type
    case = next(case for case in CASES if case.model_type == model_type)
    counted = sum(weight.numel() for weight in model_of(case).hf.parameters())
    assert manifest["decoder"]["parameters"] == counted
    tokens = [profile["input_ids"]["max"] for profile in manifest["profiles"]]
    assert tokens == [[3 + 16 + TOKEN_TILE - 1, 1], [3, 1]]  # a mixed step's, with idle ones, and a decode step's


def test_llm_bundle_is_verified_against_transformers(llama: Path, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "m.yaml").code == 0
    ran = trtkit("verify", "bundles/m", "--json")
    assert ran.code == 0, ran.err
    found = ran.json()
    assert found["outputs"]["logits"]["relative_rms_error"] <= 1e-5
    assert found["task"]["agreement"] == 1.0
    assert [corner["name"] for corner in found["corners"]] == [
        "chunks of 1",
        "chunks of 5",
        "slots of different lengths",
        "decoding and prompts in one call",
    ]
    manifest = json.loads((workspace / "bundles/m/manifest.json").read_text())
    assert manifest["verify"]["passed"] is True


def test_a_stored_head_that_differs_from_a_tied_embedding_is_built_and_verified(
    llama: Path, trtkit: Callable[..., Ran]
) -> None:
    """transformers does not tie then; a network with the embedding for a head is out of tolerance."""
    head = torch.randn(67, 42, generator=torch.Generator().manual_seed(7))
    save_file({**load_file(llama / "model.safetensors"), "lm_head.weight": head}, llama / "model.safetensors")
    edit(llama, tie_word_embeddings=True)
    built = trtkit("build", "m.yaml")
    assert "the stored `lm_head.weight` is used, since it differs from the tied embedding" in built.out + built.err
    ran = trtkit("verify", "bundles/m", "--json", "--no-corners")
    report = ran.json()
    assert report["outputs"]["logits"]["relative_rms_error"] <= 1e-5
    assert report["reference"].endswith("LlamaForCausalLM in fp32")  # by transformers' own reading
    assert torch.equal(AutoModelForCausalLM.from_pretrained(llama).lm_head.weight, head)


def test_kv_bytes_are_those_of_the_cache_inputs(llama: Path, trtkit: Callable[..., Ran]) -> None:
    network = trtkit("inspect", "m.yaml", "--json").json()
    names = ("past_key", "past_value")  # rows of prompts read the same memory as `past_prompt_key`
    caches = [tensor for tensor in network["network"]["inputs"] if tensor["name"].startswith(names)]
    elements = sum(tensor["shape"][1] * tensor["shape"][2] * tensor["shape"][3] for tensor in caches)
    assert network["decoder"]["kv_bytes_per_slot"] == 4 * elements
    assert network["decoder"]["kv_bytes_per_token"] * 32 == 4 * elements


def test_inputs_say_what_their_axes_are_and_who_feeds_them(llama: Path, trtkit: Callable[..., Ran]) -> None:
    separate = ("--set", "llm.batching=separate")
    manifest = trtkit("build", "m.yaml", *separate, "--json").json()["manifest"]
    inputs = {each["name"]: each for each in manifest["stages"][0]["inputs"]}
    assert manifest["inputs"] == list(inputs.values())
    tokens, batch = ["batch", "new_tokens"], ["batch"]
    assert {name: (each["feeder"], each["axes"]) for name, each in inputs.items() if each["feeder"] != "cache"} == {
        "input_ids": ("request", tokens),
        "position_ids": ("scheduler", tokens),
        "write_indices": ("scheduler", batch),
        "kv_lengths": ("scheduler", batch),
        "last_token_index": ("scheduler", batch),
    }
    words = (*separate, "--set", "llm.kv_window=used", "--output", "used")
    used = trtkit("build", "m.yaml", *words, "--json").json()["manifest"]
    window = {each["name"]: each for each in used["inputs"]}["key_positions"]
    assert (window["feeder"], window["axes"], window["shape"]) == ("scheduler", ["kv_window"], [-1])
    shapes = [{"min": [1], "opt": [16], "max": [32]}] * 2
    assert [profile["key_positions"] for profile in used["profiles"]] == shapes
    caches = [each for each in inputs.values() if each["feeder"] == "cache"]
    assert {tuple(each["axes"]) for each in caches} == {("batch", "key_value_heads", "cached_tokens", "head_dim")}
    outputs = {each["name"]: each for each in manifest["outputs"]}
    assert {"logits", *(each["updated"] for each in caches)} == outputs.keys()
    assert all(outputs[each["updated"]]["shape"] == each["shape"] for each in caches)


def test_bundle_whose_weights_changed_is_not_verified(llama: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "m.yaml").code == 0
    weights = load_file(llama / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, llama / "model.safetensors", {"format": "pt"})
    ran = trtkit("verify", "bundles/m")
    assert ran.code == 1
    assert "the source has changed since the bundle was built" in ran.err


def test_error_above_the_tolerance_exits_3_and_is_explained_layer_by_layer(
    llama: Path, trtkit: Callable[..., Ran]
) -> None:
    ran = trtkit("verify", "m.yaml", "--set", "verify.max_relative_rms_error=1e-12", "--json")
    assert ran.code == 3
    assert ran.json()["passed"] is False
    layers = [layer["layer"] for layer in ran.json()["layers"]]
    assert "layers.1/mlp/down/matmul" in layers


def test_length_above_the_models_own_is_refused(llama: Path, refuses: Callable[..., str]) -> None:
    assert refuses("build", "m.yaml", "--set", "llm.max_sequence_length=65", code=2) == (
        f"the config does not fit {llama / 'config.json'}\n"
        "  llm.max_sequence_length: 65 is above the model's `max_position_embeddings`, 64\n"
        "    fix: lower it to 64 or less"
    )


def test_slots_are_no_longer_than_the_models_positions(llama: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", "./llama", "--precision", "fp32")
    assert ran.code == 0, ran.err
    assert "8 slots of 64 tokens (all that the model has positions for)" in " ".join((ran.out + ran.err).split())


def test_unknown_model_type_names_its_neighbours(llama: Path, refuses: Callable[..., str]) -> None:
    edit(llama, model_type="lama")
    said = refuses("build", "m.yaml")
    assert "unknown `model_type` `lama`" in said
    assert "did you mean `llama`" in said


def test_a_language_model_of_another_family_is_refused_as_one(workspace: Path, refuses: Callable[..., str]) -> None:
    """Not as a picture model whose input size is missing."""
    (workspace / "longcat").mkdir()
    fields = {"model_type": "longcat_flash", "architectures": ["LongcatFlashForCausalLM"], "vocab_size": 131072}
    (workspace / "longcat/config.json").write_text(json.dumps(fields))
    (workspace / "m.yaml").write_text("source: {hf: longcat}\n")
    refused = refuses("build", "m.yaml")
    what = "config.json: `longcat_flash` is a language model of a family that is not supported"
    expected = f"{what}\nfix: `trtkit list --families` lists those that are; TRTKIT_FAMILIES adds your own"
    assert expected in refused


@pytest.mark.parametrize(
    ("model_type", "what", "fix"),
    [
        ("mpnet", "a text encoder", "`bert`, `camembert`, `distilbert`, `modernbert`, `roberta`, `xlm-roberta`"),
        ("electra", "a text encoder", "`bert`, `camembert`, `distilbert`, `modernbert`, `roberta`, `xlm-roberta`"),
        ("bart", "an encoder-decoder", "`mt5`, `t5`, `umt5`, `whisper`"),
        ("marian", "an encoder-decoder", "`mt5`, `t5`, `umt5`, `whisper`"),
    ],
)
@pytest.mark.parametrize("llm", ["", "llm: {max_source_length: 64}\n"])
def test_encoders_of_other_families_are_named_as_what_they_are(
    model_type: str, what: str, fix: str, llm: str, workspace: Path, refuses: Callable[..., str]
) -> None:
    (workspace / "model").mkdir()
    fields = {"model_type": model_type, "vocab_size": 1000, "architectures": ["Model"]}
    (workspace / "model/config.json").write_text(json.dumps(fields))
    (workspace / "m.yaml").write_text(f"source: {{hf: model}}\n{llm}")
    assert refuses("build", "m.yaml") == (
        f"{workspace}/model/config.json: `{model_type}` is {what} of a family that is not supported\n"
        f"fix: supported are {fix}"
    )


def test_long_rope_factors_are_taken_at_every_length_as_the_reference_then_does(
    workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    edit(saved("phi3", workspace / "phi3"), original_max_position_embeddings=48)
    llm = "{max_batch_size: 1, max_sequence_length: 60, max_prefill_length: 16}"
    (workspace / "m.yaml").write_text(f"source: {{hf: phi3}}\nllm: {llm}\n")
    report = trtkit("verify", "m.yaml", "--no-corners", "--json").json()
    assert report["outputs"]["logits"]["relative_rms_error"] <= 1e-5
    assert report["reference"].endswith("Phi3ForCausalLM in fp32, long rope factors at every length")
    config = load_config("m.yaml", ())
    spec = checked_spec(config, open_hf_folder(workspace / "phi3"))
    assert rope_note(spec, llm_options(config)) == (
        "long factors at every length; transformers takes the short ones up to 48 tokens: "
        "`llm.max_sequence_length=48` builds with those"
    )
    assert rope_note(spec, LlmOptions(max_sequence_length=48, max_prefill_length=16)) == ""


def test_field_that_changes_the_mathematics_is_refused_by_name(llama: Path, refuses: Callable[..., str]) -> None:
    edit(llama, attention_multiplier=0.3)
    assert "`attention_multiplier` is `0.3`" in refuses("build", "m.yaml")


def test_missing_and_misshapen_weights_are_named_all_at_once(llama: Path, refuses: Callable[..., str]) -> None:
    weights = load_file(llama / "model.safetensors")
    weights.pop("model.layers.0.self_attn.q_proj.weight")
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1].clone()
    weights["surplus"] = weights["model.norm.weight"].clone()
    save_file(weights, llama / "model.safetensors", {"format": "pt"})
    said = refuses("build", "m.yaml")
    assert "`model.layers.0.self_attn.q_proj.weight` is missing" in said
    assert "`model.norm.weight` has shape [41]; expected [42]" in said
    assert "`surplus`" in said


def test_weight_that_is_not_a_number_is_refused(llama: Path, refuses: Callable[..., str]) -> None:
    weights = load_file(llama / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, llama / "model.safetensors", {"format": "pt"})
    what = "config.json: `model.norm.weight` has 1 of 42 values that are NaN or infinite"
    assert what in refuses("build", "m.yaml")


def test_weight_that_fp16_makes_infinite_is_refused(
    llama: Path, refuses: Callable[..., str], trtkit: Callable[..., Ran]
) -> None:
    weights = {name: weight.bfloat16() for name, weight in load_file(llama / "model.safetensors").items()}
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = -70000.0
    save_file(weights, llama / "model.safetensors", {"format": "pt"})
    assert refuses("build", "m.yaml", "--precision", "fp16") == (
        f"{llama}/config.json: weight `model.layers.1.mlp.up_proj.weight` holds -7.01e+04; the largest number of fp16 "
        "is 65504\nfix: build with `--precision bf16` or `fp32`"
    )
    assert trtkit("build", "m.yaml", "--precision", "bf16", "--quiet").code == 0


def test_weights_in_fp64_are_rounded_to_fp32_as_transformers_rounds_them(
    llama: Path, trtkit: Callable[..., Ran]
) -> None:
    weights = {name: weight.double() for name, weight in load_file(llama / "model.safetensors").items()}
    save_file(weights, llama / "model.safetensors", {"format": "pt"})
    assert trtkit("build", "m.yaml", "--precision", "fp32", "--quiet").code == 0
    assert trtkit("verify", "bundles/m", "--no-corners", "--quiet").code == 0


def test_config_that_begins_with_a_byte_order_mark_is_refused_as_that(llama: Path, refuses: Callable[..., str]) -> None:
    path = llama / "config.json"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    reason = "it begins with a byte-order mark; save it as UTF-8 without one"
    assert f"{path}: not valid JSON: {reason}" in refuses("build", "m.yaml")
    assert f"`config.json` cannot be read: {reason}" in refuses("build", "./llama")


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors"])
def test_plain_weights_of_a_config_that_says_quantized_are_refused(
    method: str, llama: Path, refuses: Callable[..., str]
) -> None:
    edit(llama, quantization_config={"quant_method": method, "bits": 4, "group_size": 32})
    assert refuses("build", "m.yaml") == (
        f"{llama}/config.json: `quantization_config` states `{method}`, but no weight is quantized\n"
        "fix: remove `quantization_config`, or take the right weights"
    )


def test_truncated_weights_are_refused(llama: Path, refuses: Callable[..., str]) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "truncated" in refuses("build", "m.yaml")


def test_missing_folder_says_how_to_name_it(workspace: Path, refuses: Callable[..., str]) -> None:
    said = refuses("build", "qwen3", "--set", "source.hf=nowhere")
    assert said == f"{workspace / 'nowhere'}: no such folder\nfix: name the model's folder: `--set source.hf=FOLDER`"


def test_model_that_memory_cannot_hold_is_refused_before_it_is_read(
    llama: Path, workspace: Path, refuses: Callable[..., str]
) -> None:
    shutil.rmtree(workspace / "llama")
    folder = saved("llama", workspace / "llama")
    edit(folder, vocab_size=2**28, hidden_size=2**13)
    said = refuses("build", "m.yaml")
    assert "GiB of memory needed" in said
    assert "fix: free some memory, or build on a machine with more" in said


def test_perplexity_of_a_source_without_tokenizer_is_refused(llama: Path, refuses: Callable[..., str]) -> None:
    said = refuses("verify", "m.yaml", "--text", "m.yaml")
    assert "the source has no tokenizer" in said


def test_a_slot_shorter_than_the_prompts_of_verify_is_verified(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    tiny_llm.save(workspace / "model")
    (workspace / "m.yaml").write_text(
        "source: {hf: model}\nllm: {max_batch_size: 2, max_sequence_length: 16, max_prefill_length: 8}\n"
    )
    assert trtkit("build", "m.yaml", "--quiet").code == 0
    ran = trtkit("verify", "bundles/m", "--quiet")
    assert (ran.code, ran.err) == (0, "")
