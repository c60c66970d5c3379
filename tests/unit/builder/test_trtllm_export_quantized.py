"""Quantized TensorRT-LLM checkpoints that trtkit writes: codes and scales to the bit, or refused by name."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import modelopt.torch.quantization as mtq
import numpy as np
import pytest
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.modelopt import trtllm_checkpoint
from tests.unit.builder.test_trtllm_export import assert_same_bits, config_of, ranks_of, refused, written
from tests.unit.sources.quantized.test_modelopt import IDS, SIZES, blocks_of, mixed, with_fp8_caches
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder, open_trtllm

CONFIGS: dict[str, Any] = {
    "int8_wo": lambda: mtq.INT8_WEIGHT_ONLY_CFG,
    "int8_sq": lambda: mtq.INT8_SMOOTHQUANT_CFG,
    "int4_awq": lambda: blocks_of(64, {"method": "awq_lite", "alpha_step": 0.5}),
    "int4_wo": lambda: blocks_of(32, {"method": "max"}),
    "fp8": lambda: mtq.FP8_DEFAULT_CFG,
    "fp8_caches": lambda: with_fp8_caches(mtq.FP8_DEFAULT_CFG),
    "fp8_pc_pt": lambda: mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
    "nvfp4": lambda: mtq.NVFP4_DEFAULT_CFG,
    "mxfp8": lambda: mtq.MXFP8_DEFAULT_CFG,
    "mixed": mixed,
}
FACTORS = ("prequant_scaling_factor",)


def quantized(name: str) -> Any:
    """Return a model that ModelOpt quantized, with what it does to layers of the same inputs done."""
    torch.manual_seed(0)
    sizes = SIZES | {"num_hidden_layers": 2, "vocab_size": 128}  # ModelOpt pads vocabularies for AWQ
    model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False)).half().eval()
    model.config.architectures = ["LlamaForCausalLM"]
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        model = mtq.quantize(model, CONFIGS[name](), lambda one: one(IDS))
        requantize_resmooth_fused_llm_layers(model)
    return model


@cache
def hf_export(name: str) -> Path:
    folder = Path(mkdtemp())
    with contextlib.redirect_stdout(io.StringIO()):
        export_hf_checkpoint(quantized(name), dtype=torch.float16, export_dir=folder)
    return folder


@cache
def trtllm_export(name: str, ranks: int) -> Path:
    return trtllm_checkpoint(quantized(name), "llama", torch.float16, ranks)


@pytest.mark.parametrize("name", ["int8_sq", "int4_awq", "int4_wo", "nvfp4"])
def test_modelopts_checkpoint_for_transformers_becomes_its_checkpoint_for_tensorrt_llm(
    name: str, tmp_path: Path
) -> None:
    """AWQ's factors of layers whose norm took them are left out there, and are 1 here: TensorRT-LLM needs them."""
    ours, theirs = written({"hf": str(hf_export(name))}, tmp_path, parallel={"tensor": 2}), trtllm_export(name, 2)
    assert_same_bits(ours, theirs, FACTORS)
    extra = ranks_of(ours)[0].keys() - ranks_of(theirs)[0].keys()
    assert bool(extra) == (name == "int4_awq")
    assert all(bool((ranks_of(ours)[0][tensor] == 1).all()) for tensor in extra)
    # ModelOpt says that layers have factors even where none has.
    want = config_of(theirs)["quantization"] | ({"pre_quant_scale": False} if name == "int4_wo" else {})
    assert config_of(ours)["quantization"] == want


@pytest.mark.parametrize("name", ["int8_sq", "int4_wo", "fp8", "fp8_caches", "nvfp4"])
@pytest.mark.parametrize(("read", "write"), [(2, 1), (1, 2), (2, 2)])
def test_what_modelopt_wrote_for_some_ranks_is_written_for_others(
    name: str, read: int, write: int, tmp_path: Path
) -> None:
    ours = written({"trtllm": str(trtllm_export(name, read))}, tmp_path, parallel={"tensor": write})
    theirs = trtllm_export(name, write)
    assert_same_bits(ours, theirs)
    for key in ("quant_algo", "kv_cache_quant_algo", "exclude_modules"):
        assert config_of(ours)["quantization"].get(key) == config_of(theirs)["quantization"].get(key)


def test_fp8_scales_that_differ_are_joined_only_if_asked_to(tmp_path: Path) -> None:
    source = {"hf": str(hf_export("fp8"))}
    assert refused(source, tmp_path).startswith(
        "fp8 layers that a TensorRT-LLM checkpoint cannot hold\n"
        "  model.layers.0.self_attn: queries, keys and values have scales of their own, and TensorRT-LLM joins them"
    )
    (arrays,), state = (
        ranks_of(written(source, tmp_path, requantize=True)),
        load_file(hf_export("fp8") / "model.safetensors"),
    )
    for layer in range(2):
        start, name = f"model.layers.{layer}.self_attn.", f"transformer.layers.{layer}.attention.qkv."
        scales = [state[f"{start}{part}_proj.weight_scale"].reshape(()) for part in "qkv"]
        assert arrays[f"{name}weights_scaling_factor"] == max(scales)
        codes = [
            (state[f"{start}{part}_proj.weight"].float() * scale / max(scales)).to(torch.float8_e4m3fn)
            for part, scale in zip("qkv", scales, strict=True)
        ]
        got, want = arrays[f"{name}weight"].float(), torch.cat([code.float() for code in codes])
        assert torch.equal(got, want)
        assert arrays[f"{name}activation_scaling_factor"] == max(state[f"{start}{p}_proj.input_scale"] for p in "qkv")


def test_scales_of_caches_are_written_each_and_the_larger_for_both(tmp_path: Path) -> None:
    for file in hf_export("fp8_caches").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    state = load_file(tmp_path / "model.safetensors")
    scales = {"k_proj.k_scale": 1.5, "v_proj.v_scale": 2.5}
    state |= {f"model.layers.1.self_attn.{name}": torch.tensor(scale) for name, scale in scales.items()}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    parallel = {"tensor": 2, "pipeline": 2}
    out = written({"hf": str(tmp_path)}, tmp_path, requantize=True, parallel=parallel)
    last = ranks_of(out)[3]
    names = {name.rpartition(".")[2]: float(array) for name, array in last.items() if "cache" in name}
    wanted = {"k_cache_scaling_factor": 1.5, "v_cache_scaling_factor": 2.5, "kv_cache_scaling_factor": 2.5}
    assert names == wanted
    caches = open_trtllm(out).kv_cache
    assert caches is not None
    assert caches.scales[1] == {"key": 1.5, "value": 2.5}
    assert config_of(out)["quantization"]["kv_cache_quant_algo"] == "FP8"


def test_layers_that_are_not_quantized_are_excluded(tmp_path: Path) -> None:
    for file in hf_export("int8_sq").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    state = load_file(tmp_path / "model.safetensors")
    matrix = open_hf_folder(tmp_path).checkpoint["model.layers.1.mlp.down_proj.weight"]
    assert isinstance(matrix, QuantizedMatrix)
    name = "model.layers.1.mlp.down_proj."
    state = {key: tensor for key, tensor in state.items() if not key.startswith(name)}
    state[f"{name}weight"] = torch.from_numpy(matrix.weights()).half()
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = {"hf": str(tmp_path)}
    out = written(source, tmp_path, parallel={"tensor": 2})
    assert config_of(out)["quantization"]["exclude_modules"] == ["lm_head", "transformer.layers.1.mlp.proj"]
    ours = open_trtllm(out).checkpoint[f"{name}weight"]
    np.testing.assert_array_equal(ours, state[f"{name}weight"].numpy())
    (tmp_path / "stages").mkdir()
    for file in [one for one in tmp_path.iterdir() if one.is_file()]:
        (tmp_path / "stages" / file.name).write_bytes(file.read_bytes())
    text = refused({"hf": str(tmp_path / "stages")}, tmp_path / "stages", parallel={"pipeline": 2})
    assert "pipeline stages leave different layers unquantized" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "int8_wo",
            "TensorRT-LLM has no tensors for int8 weights alone: it rounds the original weights when it builds",
        ),
        ("fp8_pc_pt", "inputs scaled by token are laid out for one GPU's kernel in these checkpoints"),
        ("mxfp8", "TensorRT-LLM has no layer of mxfp8 weights with scales for blocks and inputs in mxfp8"),
        ("mixed", "layers have 2 kinds of quantization: FP8, NVFP4"),
    ],
)
def test_what_has_no_form_is_refused(name: str, message: str, tmp_path: Path) -> None:
    assert message in refused({"hf": str(hf_export(name))}, tmp_path, requantize=True)
