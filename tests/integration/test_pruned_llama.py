"""A Llama pruned layer by layer (Nemotron-NAS) computes the same as transformers' Llama with zeros."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support import tiny_llm
from tests.support.decoders import Runner, relative_rms, rtx
from tests.unit.planning.planned import counted
from trtkit.dtypes import FP16, FP32
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.planning.decoder_model import decoder_model
from trtkit.sources.decoder_source import open_hf_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

HEADS, HEAD_DIM, HIDDEN, WIDTH = 6, 16, 96, 256
ROPE = {
    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}  # fmt: skip
FULL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": 5, "vocab_size": 320,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_scaling": ROPE, "rope_theta": 500.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
KEPT_HEADS = {1: 2, 3: 6, 4: 1}
"""Key/value heads of the layers that have attention."""
KEPT_WIDTHS = {0: WIDTH, 1: 96, 4: 32}
"""Widths of the layers that have an MLP."""
FIELDS: dict[str, Any] = {  # as NVIDIA's files state them
    **{key: value for key, value in FULL.items() if key != "model_type"},
    "model_type": "nemotron-nas",
    "architectures": ["DeciLMForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_decilm.DeciLMConfig"},
    "intermediate_size": None,
    "num_key_value_heads": None,
    "block_configs": [
        {
            "attention": {
                "n_heads_in_group": HEADS // KEPT_HEADS[index] if index in KEPT_HEADS else None,
                "no_op": index not in KEPT_HEADS,
                **{"num_sink_tokens": None, "replace_with_linear": False, "sparsify": None, "unshifted_sink": False},
                **{"use_prefill_window_in_sink_attention": False, "window_length": None},
            },
            "ffn": {
                **({"ffn_mult": 4.0} if index == 0 else {"intermediate_size": KEPT_WIDTHS.get(index)}),
                "no_op": index not in KEPT_WIDTHS,
                **{"replace_with_linear": False, "sparsify": None},
            },
        }
        for index in range(5)
    ],
}
IDS = torch.randint(3, 320, (3, 21), generator=torch.Generator().manual_seed(1))


def zeroed_llama() -> Any:
    """Return transformers' Llama, in which what is to be pruned adds nothing, and grouped heads are equal."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**deepcopy(FULL)), attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            torch.nn.init.normal_(weight, float("norm" in name), 1.5 * weight.shape[-1] ** -0.5)
        for index, layer in enumerate(model.model.layers):
            heads, width = KEPT_HEADS.get(index), KEPT_WIDTHS.get(index, 0)
            layer.mlp.down_proj.weight[:, width:] = 0
            if heads is None:
                layer.self_attn.o_proj.weight[:] = 0
                continue
            for part in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                by_head = part.weight.view(HEADS, HEAD_DIM, HIDDEN)
                by_head[:] = by_head[:: HEADS // heads].repeat_interleave(HEADS // heads, 0)
    return model


def pruned_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the checkpoint without what adds nothing."""
    weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    for index in range(FULL["num_hidden_layers"]):
        at, heads, width = f"model.layers.{index}.", KEPT_HEADS.get(index), KEPT_WIDTHS.get(index)
        for name in ("k_proj", "v_proj") if heads else ():
            by_head = weights[f"{at}self_attn.{name}.weight"].view(HEADS, HEAD_DIM, HIDDEN)
            weights[f"{at}self_attn.{name}.weight"] = by_head[:: HEADS // (heads or 1)].reshape(-1, HIDDEN).clone()
        for name in ("gate_proj", "up_proj"):
            weights[f"{at}mlp.{name}.weight"] = weights[f"{at}mlp.{name}.weight"][:width].clone()
        weights[f"{at}mlp.down_proj.weight"] = weights[f"{at}mlp.down_proj.weight"][:, :width].clone()
        absent = [
            *(() if heads else ("self_attn.", "input_layernorm.")),
            *(() if width else ("mlp.", "post_attention")),
        ]
        weights = {name: each for name, each in weights.items() if not any(name.startswith(at + a) for a in absent)}
    return weights


@pytest.fixture
def folder(workspace: Path) -> Path:
    """Return the folder of the pruned model."""
    path = workspace / "model"
    path.mkdir()
    save_file(pruned_weights(zeroed_llama()), path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(FIELDS))
    tiny_llm.tokenizer().save_pretrained(path)
    sizes = "{max_batch_size: 2, max_sequence_length: 48, max_prefill_length: 16}"
    (workspace / "m.yaml").write_text(f"source: {{hf: model}}\nprecision: fp32\nllm: {sizes}\n")
    return path


def test_a_pruned_llama_computes_what_llama_does_with_zeros(folder: Path) -> None:
    opened = open_hf_folder(folder)
    spec = decoder_spec(opened.config)
    graph = Graph(rtx())
    build_decoder(graph, spec, find_weights(spec, opened.checkpoint), DecoderOptions(FP32, 32, has_all_logits=True))
    caches = {each.name: each.shape[1] for each in graph.inputs if each.feeder == "cache"}
    assert caches == {f"past_{name}_{index}": heads for index, heads in KEPT_HEADS.items() for name in ("key", "value")}
    with torch.inference_mode():
        want = zeroed_llama()(IDS).logits
    runner = Runner(graph)
    runner.reset(3)
    got = torch.cat([runner.step(part)["logits"] for part in IDS.split(8, 1)], 1)
    assert relative_rms(got, want) <= 1e-5


def test_it_verifies(folder: Path, trtkit: Callable[..., Ran]) -> None:
    """In comparison with transformers' Llama layers. Published files name code, which is not run."""
    (folder.parent / "text.txt").write_text(tiny_llm.TEXT * 3)
    ran = trtkit("verify", "m.yaml", "--text", "text.txt")
    assert ran.code == 0, ran.err


@pytest.mark.slow
def test_it_verifies_and_builds_quantized(folder: Path, trtkit: Callable[..., Ran]) -> None:
    (folder.parent / "text.txt").write_text(tiny_llm.TEXT * 3)
    for arguments in (
        ("build", "m.yaml", "-o", "whole"),
        ("quantize", "m.yaml", "-o", "int8", "--set", "quantize.method=int8_wo"),
        ("quantize", "m.yaml", "-o", "int4", "--set", "quantize.method=int4_wo"),
        ("build", "m.yaml", "-o", "small", "--set", "source.hf=int4", "--target", "sm80"),
        ("verify", "m.yaml", "--text", "text.txt", "--set", "source.hf=int8"),
        ("verify", "m.yaml", "--text", "text.txt", "--set", "source.hf=int4"),
    ):
        ran = trtkit(*arguments)
        assert ran.code == 0, (arguments, ran.out, ran.err)


def test_a_plan_counts_each_layers_heads() -> None:
    model = decoder_model("pruned", decoder_spec(FIELDS), FP16)
    elements = 2 * HEAD_DIM * sum(KEPT_HEADS.values())
    assert model.kv_bytes_per_token == 2 * elements
    assert counted(FIELDS).cache_bytes.at((3, 1, 40)) == 3 * 40 * 2 * elements
