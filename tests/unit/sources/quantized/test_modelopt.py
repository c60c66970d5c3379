"""Checkpoints that ModelOpt exports: the weights that it computes with."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import modelopt.torch.quantization as mtq
import numpy as np
import pytest
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from trtkit.errors import TrtkitError
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix
from trtkit.sources.decoder_source import DecoderSource, open_hf_folder
from trtkit.sources.huggingface.model import causal_lm

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 72, "max_position_embeddings": 64}
IDS = torch.randint(0, 72, (2, 16), generator=torch.Generator().manual_seed(0))
Json = dict[str, Any]


def blocks_of(block: int, algorithm: Json) -> Json:
    """Return ModelOpt's config of int4 in blocks of so many columns."""
    config = copy.deepcopy(mtq.INT4_AWQ_CFG)
    for entry in config["quant_cfg"]:
        if "block_sizes" in str(entry.get("cfg")):
            entry["cfg"] = {"num_bits": 4, "block_sizes": {-1: block, "type": "static"}}
    return config | {"algorithm": algorithm}


def with_fp8_caches(config: Json) -> Json:
    return {**config, "quant_cfg": [*config["quant_cfg"], *mtq.FP8_KV_CFG["quant_cfg"]]}


def mixed() -> Json:
    """Return a config with fp8 in attention, NVFP4 elsewhere."""
    config = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    for kind in ("weight", "input"):
        config["quant_cfg"].append(
            {
                "quantizer_name": f"*self_attn*{kind}_quantizer",
                "cfg": {"num_bits": (4, 3), "axis": None},
                "enable": True,
            }
        )
    return config


CONFIGS: dict[str, Any] = {
    "int8_wo": lambda: mtq.INT8_WEIGHT_ONLY_CFG,
    "int8_sq": lambda: mtq.INT8_SMOOTHQUANT_CFG,
    "int4_wo_32": lambda: blocks_of(32, {"method": "max"}),
    "int4_wo_128": lambda: blocks_of(128, {"method": "max"}),
    "int4_awq_64": lambda: blocks_of(64, {"method": "awq_lite", "alpha_step": 0.5}),
    "fp8": lambda: with_fp8_caches(mtq.FP8_DEFAULT_CFG),
    "fp8_pc_pt": lambda: mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
    "nvfp4": lambda: mtq.NVFP4_DEFAULT_CFG,
    "nvfp4_wo": lambda: mtq.W4A16_NVFP4_CFG,
    "mxfp8": lambda: mtq.MXFP8_DEFAULT_CFG,
    "mixed": mixed,
}
FORMATS = {"int8_wo": "int8", "int8_sq": "int8", "fp8": "fp8", "fp8_pc_pt": "fp8", "nvfp4": "fp4", "nvfp4_wo": "fp4"}
FORMATS |= {"mxfp8": "mxfp8", "int4_wo_32": "int4", "int4_wo_128": "int4", "int4_awq_64": "int4"}
EXACT = ("int8_wo", "int4_wo_32", "int4_wo_128", "fp8", "fp8_pc_pt", "nvfp4", "nvfp4_wo", "mxfp8", "mixed")
"""Methods whose export leaves weights as they are; the others move factors between layers."""


@dataclass(frozen=True, eq=False)
class Exported:
    """A checkpoint, what ModelOpt computes with, by module, and its logits of IDS; both in fp32.

    Its quantizers of NVFP4 and MXFP8 want a GPU: their weights are what it dequantizes, their logits None.
    """

    folder: Path
    weights: dict[str, torch.Tensor]
    logits: torch.Tensor | None


@cache
def exported(name: str) -> Exported:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[-1] ** -0.5)
    model.config.architectures = ["LlamaForCausalLM"]
    folder, needs_gpu = Path(mkdtemp()), name in ("nvfp4", "nvfp4_wo", "mxfp8", "mixed")
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        mtq.quantize(model, CONFIGS[name](), lambda found: found(IDS))
        weights = {} if needs_gpu else _rounded(model)
        logits = None if needs_gpu else model(IDS).logits
        export_hf_checkpoint(model, dtype=torch.float32, export_dir=folder)
    if needs_gpu:
        weights = _dequantized(load_file(folder / "model.safetensors"))
    return Exported(folder, weights, logits)


def _rounded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights that a model's quantizers give, times what they multiply inputs by."""
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "weight_quantizer") and module.weight_quantizer.is_enabled:
            factors = getattr(module.input_quantizer, "_pre_quant_scale", None)
            weight = module.weight_quantizer(module.weight)
            found[name] = weight.clone() if factors is None else weight * factors
    return found


def _dequantized(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a checkpoint's weights as ModelOpt dequantizes them."""
    found = {}
    for name in [key.removesuffix(".weight_scale") for key in state if key.endswith(".weight_scale")]:
        codes, scale = state[f"{name}.weight"], state[f"{name}.weight_scale"]
        if f"{name}.weight_scale_2" in state:
            packed = NVFP4QTensor(torch.Size([len(codes), 2 * codes.shape[1]]), torch.float32, codes)
            outer = state[f"{name}.weight_scale_2"]
            found[name] = packed.dequantize(torch.float32, scale=scale, double_scale=outer, block_sizes={-1: 16})
        elif scale.dtype == torch.uint8:
            found[name] = MXFP8QTensor(codes.shape, torch.float32, codes).dequantize(scale=scale)
        else:
            found[name] = codes.float() * scale
    return found


@cache
def opened(name: str) -> DecoderSource:
    return open_hf_folder(exported(name).folder)


def matrices(source: DecoderSource) -> dict[str, QuantizedMatrix]:
    found = {name.removesuffix(".weight"): source.checkpoint[name] for name in source.checkpoint}
    return {name: array for name, array in found.items() if isinstance(array, QuantizedMatrix)}


@pytest.mark.parametrize("name", EXACT)
def test_weights_are_what_modelopts_quantizers_give(name: str) -> None:
    """A quantizer divides where an export multiplies: one rounding apart; fp8 may round the other way at a tie."""
    found, want = matrices(opened(name)), exported(name).weights
    assert set(found) == set(want)
    assert len(found) == 7
    for module, weight in want.items():
        got = found[module].weights()
        same = np.isclose(got, weight.numpy(), rtol=3e-7, atol=0)
        assert same.mean() >= (0.9999 if name.startswith("fp8") else 1), module
        np.testing.assert_allclose(got, weight.numpy(), rtol=0.072, atol=0)


@pytest.mark.parametrize("name", ["int8_sq", "int4_awq_64"])
def test_layers_that_keep_their_factors_have_modelopts_weights(name: str) -> None:
    """An export averages factors of layers that read the same inputs, which changes these; the others stay."""
    compared = 0
    for module, matrix in matrices(opened(name)).items():
        if matrix.input_factors is not None:
            want = exported(name).weights[module].numpy()
            np.testing.assert_allclose(matrix.weights(), want, rtol=3e-6, atol=1e-9, err_msg=module)
            compared += 1
    assert compared >= 2


@pytest.mark.parametrize("name", ["int8_wo", "int4_wo_32", "int4_wo_128"])
def test_the_dequantized_model_computes_what_modelopts_does(name: str) -> None:
    want = exported(name).logits
    assert want is not None
    with torch.inference_mode():
        got = causal_lm(opened(name))(IDS).logits
    assert float((got - want).norm() / want.norm()) < 1e-5


@pytest.mark.parametrize("name", FORMATS)
def test_formats_blocks_and_inputs_are_kept(name: str) -> None:
    found = matrices(opened(name))
    assert {matrix.format for matrix in found.values()} == {FORMATS[name]}
    blocks = {"nvfp4": 16, "nvfp4_wo": 16, "mxfp8": 32, "int4_wo_32": 32, "int4_wo_128": 128, "int4_awq_64": 64}
    assert {matrix.block for matrix in found.values()} == {blocks.get(name, 0)}
    inputs = {"int8_sq": "int8", "fp8": "fp8", "fp8_pc_pt": "fp8", "nvfp4": "fp4", "mxfp8": "mxfp8"}
    for matrix in found.values():
        assert (matrix.inputs.format if matrix.inputs else None) == inputs.get(name)
        assert matrix.inputs is None or matrix.inputs.is_per_token == (name == "fp8_pc_pt")
    has_factors = [module for module, matrix in found.items() if matrix.input_factors is not None]
    assert bool(has_factors) == ("awq" in name or name == "int8_sq")


def test_layers_of_a_mixed_checkpoint_have_their_own_formats() -> None:
    for module, matrix in matrices(opened("mixed")).items():
        assert matrix.format == ("fp8" if "self_attn" in module else "fp4"), module
        assert isinstance(matrix.inputs, QuantizedInputs)
        assert matrix.inputs.format == matrix.format


def test_scales_of_fp8_caches_are_read() -> None:
    found, tensors = opened("fp8").kv_cache, load_file(exported("fp8").folder / "model.safetensors")
    assert found is not None
    assert found.format == "fp8"
    for layer in range(1):
        start = f"model.layers.{layer}.self_attn"
        assert found.scales[layer]["key"] == float(tensors[f"{start}.k_proj.k_scale"])
        assert found.scales[layer]["value"] == float(tensors[f"{start}.v_proj.v_scale"])


def changed(folder: Path, name: str, asked: Json | None = None, **tensors: Any) -> str:
    """Write a checkpoint with other tensors of one layer, or another config, and return why it is refused."""
    source = exported(name).folder
    start = "model.layers.0.mlp.up_proj."
    state = load_file(source / "model.safetensors")
    for key, change in tensors.items():
        value = change(state.pop(start + key))
        state |= {} if value is None else {start + key: value}
    save_file(state, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] |= asked or {}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(TrtkitError) as caught:
        open_hf_folder(folder)
    return re.sub(r"model\.layers\.0\.mlp\.", "", str(caught.value))


@pytest.mark.parametrize(
    ("name", "part", "change", "message"),
    [
        ("int8_wo", "weight_scale", lambda _: None, "`model.layers.0.mlp.up_proj.weight` holds int8"),
        ("int8_wo", "weight_scale", lambda s: s * torch.nan, "up_proj: scales are NaN or infinite"),
        (
            "int4_wo_32",
            "weight_scale",
            lambda s: s[:, :-1].contiguous(),
            "up_proj: scales of shape [256, 3] do not bel",
        ),
        (
            "int4_wo_32",
            "weight",
            lambda w: w[:-1].contiguous(),
            "scales of shape [256, 4] do not belong to rows or bl",
        ),
        ("fp8", "input_scale", lambda s: s * 0, "up_proj: `input_scale` is not one positive number"),
        (
            "nvfp4",
            "weight_scale",
            lambda s: s[:-1].contiguous(),
            "do not belong to 256 rows of 128 columns in blocks o",
        ),
        ("mxfp8", "weight", lambda w: w.view(torch.int16), "up_proj: codes of type int16 are not known"),
    ],
)
def test_damaged_layers_are_named(name: str, part: str, change: Any, message: str, tmp_path: Path) -> None:
    text = changed(tmp_path, name, **{part: change})
    assert message.replace("model.layers.0.mlp.", "") in text


@pytest.mark.parametrize("algorithm", ["W4A8_AWQ", "NVFP4_SVD", "W4A8_MXFP4_FP8"])
def test_algorithms_that_no_network_takes_are_refused(algorithm: str, tmp_path: Path) -> None:
    text = changed(tmp_path, "int8_wo", {"quant_algo": algorithm})
    assert text.startswith(f"quant_algo: ModelOpt's `{algorithm}` is not supported: ")
    mixture = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": algorithm}}}
    assert f"ModelOpt's `{algorithm}` is not supported" in changed(tmp_path, "int8_wo", mixture)
