"""Quantized mixtures of experts compute transformers' results on dequantized weights, or ModelOpt's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

from benchmarks import quantize_agreement
from tests.support import tiny_llm
from tests.support.decoders import read_network
from trtkit.config.load import load_config
from trtkit.errors import TrtkitError
from trtkit.jobs.job import JobContext
from trtkit.llm.execution import Call, ReferenceDecoder, config_network
from trtkit.quantization.jobs import QuantizedLlm, QuantizeRequest, ScoringRequest
from trtkit.quantization.llm import mixtures
from trtkit.quantization.llm.job import quantize_llm
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.huggingface.model import causal_lm
from trtkit.verification.decoder_reference import round_inputs

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import ModelConfig
    from trtkit.quantization.llm.torch_model import QuantizedTorchModel

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
    return quantize_llm(QuantizeRequest(model, out, ScoringRequest(**scoring)), JobContext())


def executed(config: Path, folder: Path) -> torch.Tensor:
    """Return the logits of the network that is built of a checkpoint."""
    built = load_config(str(config), [f"source.hf={folder}"])
    decoder = ReferenceDecoder(read_network(config_network(built, "tensorrt_rtx")), 1)
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


CALIBRATION = ["calibration.length=32", "calibration.samples=4"]


def calibrated(folder: Path, model_type: str, *keys: str) -> tuple[QuantizedTorchModel, ModelConfig]:
    """Return a model that ModelOpt has quantized in memory, and its config."""
    path = saved(folder, model_type)
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 99)
    settings = [f"quantize.{key}" for key in (*keys, f"calibration.data={folder}/text.txt", *CALIBRATION)]
    config = load_config(str(path), settings, "sm120")
    return quantize_agreement.quantized(config), config


@pytest.mark.parametrize(
    ("model_type", "keys", "layers"),
    [
        ("mixtral", ["method=fp8"], 26),
        ("glm4_moe", ["method=int8", 'layers={"*.experts.*.down": int8_wo}'], 32),
        ("granitemoeshared", ["method=fp8", 'exclude=["layers.1.moe.experts.*"]'], 21),
    ],
)
def test_the_network_computes_what_modelopts_model_does_where_inputs_are_rounded(
    model_type: str, keys: list[str], layers: int, tmp_path: Path
) -> None:
    made, config = calibrated(tmp_path, model_type, *keys)
    windows = IDS[None]
    want = next(quantize_agreement.faked(made, windows))
    made.write(config, tmp_path / "out", quantize_agreement.QUIET)
    checkpoint = open_hf_folder(tmp_path / "out").checkpoint
    assert set(checkpoint) == set(open_hf_folder(tmp_path / "model").checkpoint)
    assert sum(isinstance(checkpoint[name], QuantizedMatrix) for name in checkpoint) == layers
    got = next(quantize_agreement.executed(config, tmp_path / "out", windows))
    reference = causal_lm(source := open_hf_folder(tmp_path / "out"))
    assert round_inputs(reference, source) == {keys[0].removeprefix("method=")}
    with torch.inference_mode():
        verified = reference(torch.from_numpy(windows)).logits[0]
    for other in (want, verified):
        errors = (got - other).norm(dim=-1) / other.norm(dim=-1)
        assert errors.median() < 1e-5
        assert errors.max() < 0.1  # where a code between two values flips
    plain = transformed(tmp_path / "model")
    assert (got - plain).norm() > 1e-3 * plain.norm()


def test_experts_in_nvfp4_hold_modelopts_numbers(tmp_path: Path) -> None:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor  # takes seconds

    made, config = calibrated(tmp_path, "qwen2_moe", "method=nvfp4")
    made.write(config, tmp_path / "out", quantize_agreement.QUIET)
    plain, stored = (open_hf_folder(tmp_path / name).checkpoint for name in ("model", "out"))
    name = "model.layers.0.mlp.experts.3.down_proj.weight"
    codes, scales, outer = NVFP4QTensor.quantize(torch.from_numpy(np.array(plain[name])), 16)
    want = codes.dequantize(torch.float32, block_sizes={-1: 16}, scale=scales, double_scale=outer)
    assert np.array_equal(stored[name].weights(), want.numpy())
    assert torch.isfinite(next(quantize_agreement.executed(config, tmp_path / "out", IDS[None]))).all()


def test_caches_of_mixtures_are_quantized(tmp_path: Path) -> None:
    made, config = calibrated(tmp_path, "mixtral", "method=int8_wo", "kv_cache=fp8")
    made.write(config, tmp_path / "out", quantize_agreement.QUIET)
    caches = open_hf_folder(tmp_path / "out").kv_cache
    assert caches is not None
    assert caches.format == "fp8"
    got, want = executed(config=tmp_path / "m.yaml", folder=tmp_path / "out"), transformed(tmp_path / "out")
    errors = (got - want).norm(dim=-1) / want.norm(dim=-1)
    assert 1e-3 < errors.median() < 0.1


@pytest.mark.parametrize(
    ("overrides", "asked", "said"),
    [
        (["method=int8_sq"], {}, "`int8_sq` does not apply to mixtures of experts"),
        (
            ["method=fp8", 'layers={"*.experts.1.up": none}'],
            {},
            "need one method, not fp8 and none",
        ),
        (["method=fp8", 'layers={"*.experts.*": int4_wo}', "block=32"], {}, "experts cannot have int4_wo where"),
        (["method=int8_wo", 'layers={"*.mlp.*": int4_awq}'], {}, "matches no linear layer"),
        (["method=int8_wo", 'layers={"*.experts.*": int4_awq}'], {}, "`int4_awq` does not apply to mixtures"),
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
