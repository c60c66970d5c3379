"""Folders of transformers: every family's weights, wrappers' language models, tokenizers carried."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of
from trtkit.errors import SourceError
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.huggingface.stacked_experts import stack_experts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.decoder_case import Case

VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
TEXT = {
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


def assert_same(got: Mapping[str, np.ndarray], want: Mapping[str, torch.Tensor]) -> None:
    assert set(got) == set(want)
    for name, weight in want.items():
        np.testing.assert_array_equal(got[name].astype(np.float32), weight.float().numpy(), err_msg=name)


def in_memory(saved: dict[str, torch.Tensor], model_type: str) -> dict[str, torch.Tensor]:
    """Return a checkpoint's weights as transformers calls them once they are loaded."""
    if model_type == "nemotron_h":
        return {name.replace("backbone.", "model.", 1): value for name, value in saved.items()}
    if model_type == "mimo_v2_flash":
        return {name.replace(".attention_sink_bias", ".sinks"): value for name, value in saved.items()}
    if model_type == "axk1":
        return {name.replace(".post_mlp", ".mlp.post_mlp"): value for name, value in saved.items()}
    if model_type == "laguna":
        renamed = {"experts.e_score_correction": "gate.e_score_correction", ".shared_expert.": ".shared_experts."}
        return {re.sub("|".join(renamed), lambda found: renamed[found[0]], name): each for name, each in saved.items()}
    if model_type != "kimi_linear":
        return saved
    for start in [name.removesuffix("q_conv1d.weight") for name in saved if name.endswith("q_conv1d.weight")]:
        saved[f"{start}conv1d.weight"] = torch.cat([saved.pop(f"{start}{name}_conv1d.weight") for name in "qkv"])
        for name in ("A_log", "dt_bias", "f_a_proj.weight", "f_b_proj.weight"):
            saved[f"{start}forget_gate.{name}"] = saved.pop(f"{start}{name}")
    return {name.replace(".block_sparse_moe.", ".mlp."): value for name, value in saved.items()}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sharded_folders_give_what_transformers_saved(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    model = model_of(case)
    copy.deepcopy(model.hf).to(dtype).save_pretrained(tmp_path, max_shard_size="20KB")
    opened = open_hf_folder(tmp_path)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    names = ("config.json", "generation_config.json", "model.safetensors.index.json")
    assert set(opened.files) == {*(tmp_path / name for name in names), *shards}
    stored = stack_experts(opened.checkpoint, case.model_type)
    saved = {name: value for path in shards for name, value in load_file(path).items()}
    saved = in_memory(saved, case.model_type)
    assert_same(stored, saved)
    spec = decoder_spec(opened.config, opened.where)
    assert spec == model.spec
    assert len(find_weights(spec, opened.checkpoint)) > 10


def wrapped(kind: str, folder: Path) -> Any:
    """Save a random vision-language model; return its language model alone."""
    if kind == "gemma3":
        text: dict[str, Any] = {**TEXT, "num_hidden_layers": 6}
        model: Any = Gemma3ForConditionalGeneration(
            Gemma3Config(text_config=text, vision_config=VISION, mm_tokens_per_image=4)
        )
    elif kind == "gemma4":
        own = {"num_hidden_layers": 6, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 67}
        audio = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 8}
        parts = {"vision_config": VISION, "audio_config": {**audio, "subsampling_conv_channels": [4, 4]}}
        model = Gemma4ForConditionalGeneration(Gemma4Config(text_config={**TEXT, **own}, **parts))
    else:
        vision = {**VISION, "model_type": "clip_vision_model", "projection_dim": 16}
        config = LlavaConfig(text_config={"model_type": "llama", **TEXT}, vision_config=vision)
        model = LlavaForConditionalGeneration(config)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["gemma3", "gemma4", "llava"])
@pytest.mark.parametrize("naming", ["saved", "of today"])
def test_the_language_model_is_taken_out_of_its_wrapper(kind: str, naming: str, tmp_path: Path) -> None:
    model = wrapped(kind, tmp_path)
    if naming == "of today":  # as the modules are called since transformers 4.52
        save_file({name: value.clone() for name, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    opened = open_hf_folder(tmp_path)
    inside = model.model.language_model.state_dict()
    want = {f"model.{name}": value for name, value in inside.items()}
    assert_same({name: array for name, array in opened.checkpoint.items() if name.startswith("model.")}, want)
    assert ("lm_head.weight" in opened.checkpoint) == (kind == "llava" or naming == "of today")
    text_config = model.config.text_config.to_dict()
    spec = decoder_spec(opened.config, opened.where)
    assert spec == decoder_spec(text_config)
    assert find_weights(spec, opened.checkpoint)["embedding.weight"].shape == (67, 32)


def test_gemma_3_as_it_was_published_is_understood() -> None:
    """config.json of gemma-3-4b states little: the rest is as in `Gemma3TextConfig`."""
    scaling = {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    sizes = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    published = {"model_type": "gemma3_text", **sizes, **scaling}
    assert decoder_spec(published) == decoder_spec(Gemma3TextConfig(**published).to_dict())


def test_a_wrapper_with_names_that_are_not_known_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "owl", "text_config": {"model_type": "llama"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"owl.text.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(SourceError) as caught:
        open_hf_folder(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'config.json'}: no weights of the language model inside `owl` were found\n"
        "fix: their names are to start with one of "
        "`language_model.model.`, `language_model.lm_head.`, `model.language_model.`, "
        "`model.text_model.`, `lm_head.`, `model.`"
    )


def test_weights_of_no_part_of_a_wrapper_are_refused(tmp_path: Path) -> None:
    wrapped("llava", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({**stored, "language_model.adapter.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(SourceError) as caught:
        open_hf_folder(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'config.json'}: 1 weights belong to no known part of `llava`, such as "
        "`language_model.adapter.weight`\nfix: remove them if the model does not need them"
    )


def test_tokenizer_files_are_carried(tmp_path: Path) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    model_of(CASES[0]).hf.save_pretrained(folder)
    names = ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    for name in [*names, "README.md", "training_args.bin"]:
        (folder / name).write_text(f"the text of {name}")
    opened = open_hf_folder(folder)
    written = opened.tokenizer.write(out)
    assert sorted(path.name for path in written) == sorted([*names, "generation_config.json"])
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "generation_config.json"])
    assert (out / "chat_template.jinja").read_text() == "the text of chat_template.jinja"
    assert {folder / name for name in names} < set(opened.files)


def test_a_folder_without_tokenizer_writes_none(tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert open_hf_folder(tmp_path).tokenizer.write(tmp_path / "out") == []


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(SourceError) as caught:
        open_hf_folder(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: the folder has no `config.json`"
        "\nfix: give a folder that transformers saved, or a model repository downloaded as a whole"
    )


@pytest.mark.parametrize(("text", "message"), [("{,}", "not valid JSON: Expecting"), ("[]", "not a JSON object")])
def test_a_damaged_config_is_refused(text: str, message: str, tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SourceError, match=message):
        open_hf_folder(tmp_path)
