"""Mixtures of experts are quantized by weights alone, and compute what transformers does of the dequantized weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

from tests import tiny_llm
from trtkit.config.load import load_config
from trtkit.errors import TrtkitError
from trtkit.jobs.job import Context
from trtkit.quantization.jobs import QuantizedLlm, QuantizeRequest, ScoringRequest
from trtkit.quantization.llm import mixtures
from trtkit.quantization.llm.job import quantize_llm
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.runtime.decoder import Call, ReferenceDecoder, config_network
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.huggingface.model import causal_lm

if TYPE_CHECKING:
    from pathlib import Path

IDS = np.random.default_rng(0).integers(6, 320, 40)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 128, "num_experts_per_tok": 2}
MODELS = {
    "mixtral": SIZES | {"num_local_experts": 3},
    "granitemoeshared": SIZES | {"num_local_experts": 3, "shared_intermediate_size": 64},
    "glm4_moe": SIZES
    | {"n_routed_experts": 6, "n_group": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "head_dim": 16},
    "llama4_text": SIZES | {"num_local_experts": 3, "head_dim": 16, "intermediate_size_mlp": 64, "moe_layers": [1]},
    "gpt_oss": SIZES | {"num_local_experts": 3, "head_dim": 16},
    "qwen2_moe": SIZES
    | {"num_experts": 5, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "mlp_only_layers": [1]},
}


def saved(folder: Path, model_type: str) -> Path:
    """Write a model with its tokenizer, and a config beside it; return the config."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **MODELS[model_type])
    model = transformers.AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder / "model")
    tiny_llm.tokenizer().save_pretrained(folder / "model")
    (folder / "m.yaml").write_text(
        "source: {hf: model}\nprecision: fp32\nllm: {max_sequence_length: 64, max_prefill_length: 48, logits: all}\n"
    )
    return folder / "m.yaml"


def quantized(config: Path, out: Path, *overrides: str, **scoring: Any) -> QuantizedLlm:
    out.mkdir()
    model = load_config(str(config), [f"quantize.{key}" for key in overrides])
    return quantize_llm(QuantizeRequest(model, out, ScoringRequest(**scoring)), Context())


def executed(config: Path, folder: Path) -> torch.Tensor:
    """Return the logits of the network that is built of a checkpoint."""
    built = load_config(str(config), [f"source.hf={folder}"])
    decoder = ReferenceDecoder(config_network(built, "tensorrt_rtx"), 1)
    return decoder.forward(Call(0, IDS[None], np.array([0]), np.array([len(IDS)])))[0]


def transformed(folder: Path) -> torch.Tensor:
    """Return transformers' logits."""
    with torch.inference_mode():
        logits: torch.Tensor = causal_lm(open_hf_folder(folder))(torch.from_numpy(IDS)[None]).logits[0]
    return logits


@pytest.mark.parametrize(
    ("model_type", "method", "layers"),
    [
        ("mixtral", "int8_wo", 26),
        ("mixtral", "int4_wo", 26),
        ("qwen2_moe", "int4_wo", 29),
        ("granitemoeshared", "int8_wo", 30),
        ("glm4_moe", "int4_wo", 32),
        ("gpt_oss", "int8_wo", 26),
        ("gpt_oss", "int4_wo", 26),
        ("llama4_text", "int8_wo", 23),
    ],
)
def test_the_network_computes_what_transformers_does_with_the_dequantized_weights(
    model_type: str, method: str, layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixtures, "_SHARD_BYTES", 40_000)
    config = saved(tmp_path, model_type)
    record = quantized(config, tmp_path / "out", f"method={method}")
    source = open_hf_folder(tmp_path / "out")
    original = open_hf_folder(tmp_path / "model")
    assert set(source.checkpoint) == set(original.checkpoint)
    found = [name for name in source.checkpoint if isinstance(source.checkpoint[name], QuantizedMatrix)]
    assert len(found) == record.layers == layers
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 1
    got, want, plain = (
        executed(config, tmp_path / "out"),
        transformed(tmp_path / "out"),
        transformed(tmp_path / "model"),
    )
    assert (got - want).norm() < 1e-5 * want.norm()
    assert (got - plain).norm() > 1e-3 * plain.norm()


def test_layers_may_stay_or_have_the_other_method(tmp_path: Path) -> None:
    config = saved(tmp_path, "mixtral")
    layers = 'layers={"*.experts.1.*": int4_wo, "*.experts.0.*": none, "layers.1.*": none}'
    quantized(config, tmp_path / "out", "method=int8_wo", layers, 'exclude=["*.attention.q"]')
    checkpoint = open_hf_folder(tmp_path / "out").checkpoint
    formats = {name: matrix.format for name in checkpoint if isinstance(matrix := checkpoint[name], QuantizedMatrix)}
    assert formats["model.layers.0.block_sparse_moe.experts.1.w2.weight"] == "int4"
    assert formats["model.layers.0.block_sparse_moe.experts.2.w1.weight"] == "int8"
    assert "model.layers.0.self_attn.q_proj.weight" not in formats
    assert all(".layers.0." in name and ".experts.0." not in name for name in formats)
    got, want = executed(config, tmp_path / "out"), transformed(tmp_path / "out")
    assert (got - want).norm() < 1e-5 * want.norm()


@pytest.mark.parametrize(
    ("overrides", "asked", "said"),
    [
        (["method=fp8"], {}, "mixtures of experts support `int8_wo` and `int4_wo`, not `fp8`"),
        (["method=int8_wo", 'layers={"*.mlp.*": int4_awq}'], {}, "matches no linear layer"),
        (["method=int8_wo", 'layers={"*.experts.*": int4_awq}'], {}, "`int4_wo`, not `int4_awq`"),
        (["method=int8_wo", "kv_cache=int8"], {}, "the KV cache of a mixture of experts cannot be quantized"),
        (["method=int8_wo"], {"sensitivity": True}, "layers of a mixture of experts are not scored one by one"),
        (["method=int4_wo", "block=128"], {}, "a block size of 128 does not divide the 64 columns"),
    ],
)
def test_what_mixtures_cannot_have_is_said(
    overrides: list[str], asked: dict[str, Any], said: str, tmp_path: Path
) -> None:
    config = saved(tmp_path, "mixtral")
    with pytest.raises(TrtkitError) as caught:
        quantized(config, tmp_path / "out", *overrides, **asked)
    assert said in str(caught.value)
    assert not list((tmp_path / "out").iterdir())
