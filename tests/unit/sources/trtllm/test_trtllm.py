"""TensorRT-LLM checkpoints: those that ModelOpt writes give back the weights of transformers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.modelopt import trtllm_checkpoint
from trtkit.errors import SourceError, TrtkitError
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.planning.source import find_model
from trtkit.sources.decoder_source import open_trtllm

Arrays = dict[str, torch.Tensor]
SIZES = {
    "vocab_size": 72,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
GPT2_SIZES = {"vocab_size": 72, "n_embd": 48, "n_layer": 2, "n_head": 12, "n_positions": 64, "n_inner": 76}
GPT2_SIZES |= {"bos_token_id": 1, "eos_token_id": 2}
EXPORT_NAMES = {"llama": "llama", "qwen2": "qwen", "gpt2": "gpt"}
MORE_NAMES = {"mistral": "llama", "qwen3": "qwen", "gemma": "gemma", "starcoder2": "gpt", "nemotron": "gpt"}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def config_of(model_type: str) -> Any:
    return AutoConfig.for_model(model_type, **(GPT2_SIZES if model_type == "gpt2" else SIZES))


@cache
def model_of(model_type: str) -> Any:
    """Return a model in fp16 with every weight random."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(model_type)).half().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    model.config.architectures = [type(model).__name__]
    return model


@cache
def exported(model_type: str, ranks: int) -> Path:
    """Return the folder that ModelOpt wrote for some ranks. Not to be changed."""
    return trtllm_checkpoint(model_of(model_type), {**EXPORT_NAMES, **MORE_NAMES}[model_type], torch.float16, ranks)


def changed(tmp_path: Path, model_type: str = "llama", ranks: int = 2, **fields: Any) -> Path:
    """Return a copy of an exported checkpoint with other fields in its config."""
    source = exported(model_type, ranks)
    for path in source.glob("rank*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text()) | fields
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def read(folder: Path) -> list[Arrays]:
    return [load_file(path) for path in sorted(folder.glob("rank*"))]


def assert_holds(folder: Path, model_type: str, *, has_head: bool = True) -> None:
    """Check that a checkpoint holds the model's weights, to the bit."""
    checkpoint, model = open_trtllm(folder).checkpoint, model_of(model_type)
    want = {name: weight for name, weight in model.state_dict().items() if has_head or name != "lm_head.weight"}
    assert set(checkpoint) == set(want)
    for name, weight in want.items():
        np.testing.assert_array_equal(checkpoint[name], weight.numpy(), err_msg=name)
        assert checkpoint.shape_of(name) == tuple(weight.shape)  # type: ignore[attr-defined]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("model_type", EXPORT_NAMES)
def test_what_modelopt_wrote_gives_the_weights_of_transformers(model_type: str, ranks: int) -> None:
    folder = exported(model_type, ranks)
    assert len(list(folder.glob("rank*.safetensors"))) == ranks
    assert_holds(folder, model_type)


@pytest.mark.parametrize("model_type", MORE_NAMES)
def test_other_families_that_modelopt_writes_have_the_same_weights(model_type: str) -> None:
    """It adds 1 to some norms, in fp16."""
    checkpoint, model = open_trtllm(exported(model_type, 2)).checkpoint, model_of(model_type)
    want = {name: weight for name, weight in model.state_dict().items() if name in checkpoint}
    assert set(checkpoint) == set(want)
    assert set(model.state_dict()) - set(want) <= {"lm_head.weight"}
    for name, weight in want.items():
        is_moved = model_type in ("gemma", "nemotron") and name.endswith("norm.weight")
        np.testing.assert_allclose(checkpoint[name], weight.numpy(), rtol=0, atol=2e-3 * is_moved, err_msg=name)


@pytest.mark.parametrize("model_type", EXPORT_NAMES)
def test_the_config_is_that_of_transformers(model_type: str, tmp_path: Path) -> None:
    opened = open_trtllm(exported(model_type, 2))
    # ModelOpt always writes a head, and adds fields to the config of the model that it exports.
    saved = config_of(model_type).to_dict() | {"tie_word_embeddings": False}
    got = decoder_spec(opened.config)
    assert got == decoder_spec(saved)
    assert len(find_weights(got, opened.checkpoint)) > 20
    assert [path.name for path in opened.files] == ["config.json", "rank0.safetensors", "rank1.safetensors"]
    assert opened.tokenizer.write(tmp_path) == []


def test_rotary_base_and_scaling_are_taken_over(tmp_path: Path) -> None:
    rope = open_trtllm(changed(tmp_path, rotary_base=500000.0, rotary_scaling=LLAMA3)).config["rope_parameters"]
    assert rope == {"rope_theta": 500000.0, **LLAMA3}
    old = {"type": "linear", "factor": 2.0}
    rope = open_trtllm(changed(tmp_path, rotary_scaling=old)).config["rope_parameters"]
    assert rope == {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}


def test_key_heads_that_ranks_share_are_taken_once(tmp_path: Path) -> None:
    """With 3 key heads on 6 ranks, TensorRT-LLM stores each in two of them."""
    model, folder = model_of("llama"), changed(tmp_path, ranks=4, mapping={"world_size": 6, "tp_size": 6, "pp_size": 1})
    state, config = model.state_dict(), json.loads((folder / "config.json").read_text())
    ranks = [dict(arrays) for arrays in [read(exported("llama", 1))[0]] * 6]
    heads = {"num_key_value_heads": 3, "num_attention_heads": 12}
    (folder / "config.json").write_text(json.dumps(config | heads))
    for rank, arrays in enumerate(ranks):
        for layer in range(2):
            start = f"model.layers.{layer}.self_attn."
            q, k, v = (state[f"{start}{name}_proj.weight"] for name in "qkv")
            key_head = slice(rank // 2 * 4, rank // 2 * 4 + 4)
            arrays[f"transformer.layers.{layer}.attention.qkv.weight"] = torch.cat(
                [q[rank * 8 : rank * 8 + 8], k[key_head], v[key_head]]
            )
        save_file(arrays, folder / f"rank{rank}.safetensors")
    checkpoint = open_trtllm(folder).checkpoint
    for name, rows in (("q", 48), ("k", 12), ("v", 12)):
        full = f"model.layers.1.self_attn.{name}_proj.weight"
        np.testing.assert_array_equal(checkpoint[full], state[full][:rows].numpy())


def test_embeddings_may_be_whole_or_split_by_columns(tmp_path: Path) -> None:
    table = model_of("llama").state_dict()["model.embed_tokens.weight"]
    for parts in ([table, table], list(table.chunk(2, 1))):
        folder = changed(tmp_path)
        for rank, (arrays, part) in enumerate(zip(read(folder), parts, strict=True)):
            arrays["transformer.vocab_embedding.weight"] = part.contiguous()
            save_file(arrays, folder / f"rank{rank}.safetensors")
        assert_holds(folder, "llama")


def test_rows_that_pad_the_vocabulary_are_dropped(tmp_path: Path) -> None:
    folder = changed(tmp_path, vocab_size=70)
    checkpoint = open_trtllm(folder).checkpoint
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        np.testing.assert_array_equal(checkpoint[name], model_of("llama").state_dict()[name][:70].numpy())
        assert checkpoint.shape_of(name) == (70, 48)  # type: ignore[attr-defined]


def test_without_a_head_the_embeddings_are_tied(tmp_path: Path) -> None:
    folder = changed(tmp_path, share_embedding_table=True)
    for rank, arrays in enumerate(read(folder)):
        del arrays["lm_head.weight"]
        save_file(arrays, folder / f"rank{rank}.safetensors")
    assert open_trtllm(folder).config["tie_word_embeddings"] is True
    assert_holds(folder, "llama", has_head=False)


def refused(folder: Path) -> str:
    with pytest.raises(TrtkitError) as caught:
        open_trtllm(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"quantization": {"quant_algo": "W4A8_AWQ", "kv_cache_quant_algo": "FP8"}},
            "`quantization.quant_algo` is `W4A8_AWQ`: known: W8A16, W4A16, W4A16_AWQ, W8A8_SQ_PER_CHANNEL, FP8, ",
        ),
        ({"quantization": {"kv_cache_quant_algo": "NVFP4"}}, "`quantization.kv_cache_quant_algo` is `NVFP4`: known"),
        ({"moe": {"num_experts": 8}}, "`moe.num_experts` is `8`"),
        ({"rotary_pct": 0.5}, "`rotary_pct` is `0.5`"),
        ({"embedding_multiplier": 12.0}, "`embedding_multiplier` is `12.0`"),
        ({"hidden_size": None}, "`hidden_size` is missing"),
    ],
)
def test_what_is_not_supported_is_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    text = refused(changed(tmp_path, **fields))
    assert text.startswith("this TensorRT-LLM checkpoint is not supported\n")
    assert f"  {tmp_path / 'config.json'}: {message}" in text


def test_an_unknown_architecture_names_the_known(tmp_path: Path) -> None:
    text = refused(changed(tmp_path, architecture="MambaForCausalLM"))
    start = (
        f"{tmp_path / 'config.json'}: architecture `MambaForCausalLM` is not supported\nfix: known: LlamaForCausalLM, "
    )
    assert text.startswith(start)
    assert text.endswith(", GPT2LMHeadModel, GPTForCausalLM")


def test_missing_ranks_are_all_named(tmp_path: Path) -> None:
    folder = changed(tmp_path, ranks=4)
    (folder / "rank1.safetensors").unlink()
    (folder / "rank3.safetensors").unlink()
    assert refused(folder) == (
        f"{folder}: 2 of 4 ranks are missing: `rank1.safetensors`, `rank3.safetensors`"
        "\nfix: copy the files of all ranks"
    )


def test_stages_that_hold_other_layers_than_the_config_says_are_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path, mapping={"tp_size": 1, "pp_size": 2})
    assert refused(folder) == (
        f"{folder}: 2 stages hold 4 layers, `num_hidden_layers` is 2\nfix: copy config.json and all ranks again"
    )


def test_unknown_tensors_are_named(tmp_path: Path) -> None:
    folder = changed(tmp_path)
    for rank, arrays in enumerate(read(folder)):
        save_file(
            arrays | {"transformer.layers.0.attention.q_norm.weight": torch.ones(4)}, folder / f"rank{rank}.safetensors"
        )
    assert refused(folder) == (
        "tensors that `LlamaForCausalLM` does not have\n"
        f"  {folder}: `transformer.layers.0.attention.q_norm.weight` of shape [4]"
    )


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        open_trtllm(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: the folder has no `config.json`"
        "\nfix: give the folder that holds config.json and rank*.safetensors"
    )


def test_a_folder_is_planned_for() -> None:
    model = find_model(str(exported("llama", 1)))
    assert (model.config.source.trtllm, model.fields is not None) == (str(exported("llama", 1)), True)
