"""Quantized TensorRT-LLM checkpoints that ModelOpt writes: the weights of its Hugging Face export of the same model."""

from __future__ import annotations

import contextlib
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.modelopt import trtllm_checkpoint
from tests.unit.sources.quantized.test_modelopt import IDS, SIZES, blocks_of
from trtkit.errors import TrtkitError
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix, scales_of_pairs
from trtkit.sources.decoder_source import DecoderSource, open_trtllm

CONFIGS: dict[str, Any] = {
    "W8A16": lambda: mtq.INT8_WEIGHT_ONLY_CFG,
    "W8A8_SQ_PER_CHANNEL": lambda: mtq.INT8_SMOOTHQUANT_CFG,
    "W4A16_AWQ": lambda: blocks_of(32, {"method": "max"}),
    "FP8": lambda: mtq.FP8_DEFAULT_CFG,
    "NVFP4": lambda: mtq.NVFP4_DEFAULT_CFG,
}
INPUTS = {"W8A8_SQ_PER_CHANNEL": "int8", "FP8": "fp8", "NVFP4": "fp4"}


@cache
def model_of(name: str) -> Any:
    """Return a quantized model."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | {"num_hidden_layers": 2}, tie_word_embeddings=False)).eval()
    model.config.architectures = ["LlamaForCausalLM"]
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        return mtq.quantize(model, CONFIGS[name](), lambda found: found(IDS))


@cache
def exported(name: str, ranks: int) -> Path:
    return trtllm_checkpoint(model_of(name), "llama", torch.float32, ranks)


def matrices(source: DecoderSource) -> dict[str, QuantizedMatrix]:
    found = {name.removesuffix(".weight"): source.checkpoint[name] for name in source.checkpoint}
    return {name: array for name, array in found.items() if isinstance(array, QuantizedMatrix)}


@pytest.mark.parametrize("name", ["W8A16", "W4A16_AWQ"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_are_what_modelopts_quantizers_give(name: str, ranks: int) -> None:
    found = matrices(open_trtllm(exported(name, ranks)))
    modules = {module: part for module, part in model_of(name).named_modules() if module in found}
    assert len(found) == len(modules) == 14
    for module, part in modules.items():
        with torch.no_grad():
            want = part.weight_quantizer(part.weight).numpy()
        np.testing.assert_allclose(found[module].weights(), want, rtol=3e-7, atol=0, err_msg=module)


@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_together_hold_what_one_rank_does(name: str) -> None:
    one, two = (matrices(open_trtllm(exported(name, ranks))) for ranks in (1, 2))
    assert set(one) == set(two)
    for module, matrix in one.items():
        np.testing.assert_array_equal(two[module].weights(), matrix.weights(), err_msg=module)
        assert two[module].shape == matrix.shape
        assert two[module].inputs == matrix.inputs
        assert two[module].nbytes == matrix.nbytes, module
        assert (None if matrix.inputs is None else matrix.inputs.format) == INPUTS.get(name)


@pytest.mark.parametrize("name", ["FP8", "NVFP4", "W8A8_SQ_PER_CHANNEL"])
def test_weights_are_near_the_models_own(name: str) -> None:
    """Fused queries, keys and values share a scale, so they are not each quantizer's own."""
    found, state = matrices(open_trtllm(exported(name, 2))), model_of(name).state_dict()
    limit = {"FP8": 0.04, "NVFP4": 0.12, "W8A8_SQ_PER_CHANNEL": 0.03}[name]
    for module, matrix in found.items():
        factors = state.get(f"{module}.input_quantizer._pre_quant_scale")
        want = state[f"{module}.weight"].float() * (1 if factors is None else factors.float())
        error = np.linalg.norm(matrix.weights() - want.numpy()) / want.norm()
        assert error < limit, module


def changed(folder: Path, name: str, ranks: int = 1, quantization: Any = None, **tensors: Any) -> Path:
    """Copy a checkpoint with some tensors of layer 0 added, or left out where None."""
    config = json.loads((exported(name, ranks) / "config.json").read_text())
    config["quantization"] |= quantization or {}
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        state = load_file(exported(name, ranks) / f"rank{rank}.safetensors")
        for key, value in tensors.items():
            full = "transformer.layers.0." + key.replace("__", ".")
            state.pop(full, None)
            state |= {} if value is None else {full: value}
        save_file(state, folder / f"rank{rank}.safetensors")
    return folder


def test_caches_share_a_scale_for_keys_and_values(tmp_path: Path) -> None:
    scale = {"attention__kv_cache_scaling_factor": torch.tensor([0.5])}
    found = open_trtllm(changed(tmp_path, "FP8", quantization={"kv_cache_quant_algo": "FP8"}, **scale)).kv_cache
    assert found is not None
    assert (found.format, found.scales) == ("fp8", scales_of_pairs((0.5, 1.0), (0.5, 1.0)))
    assert open_trtllm(exported("FP8", 1)).kv_cache is None


def refused(folder: Path) -> str:
    with pytest.raises(TrtkitError) as caught:
        open_trtllm(folder)
    return str(caught.value)


def test_int8_caches_need_scales(tmp_path: Path) -> None:
    folder = changed(tmp_path, "W8A16", quantization={"kv_cache_quant_algo": "INT8"})
    assert refused(folder) == ("scales of int8 caches are missing for some layers\nfix: export the checkpoint again")


def test_layouts_of_one_kernel_are_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path, "W8A16", mlp__fc__per_channel_scale=torch.ones(256))
    assert refused(folder) == (
        "quantized layers that cannot be read\n"
        "  transformer.layers.0.mlp.fc.per_channel_scale: weights are laid out for one GPU's kernel\n"
        "fix: export the model with ModelOpt, or build from the Hugging Face model"
    )


def test_layers_without_scales_are_refused(tmp_path: Path) -> None:
    text = refused(changed(tmp_path, "W8A16", mlp__proj__weights_scaling_factor=None))
    assert "quantized weights without scales\n" in text
    assert "`model.layers.0.mlp.down_proj.weight` holds int8" in text


def test_ranks_that_scale_inputs_differently_are_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path, "FP8", ranks=2)
    state = load_file(folder / "rank1.safetensors")
    state["transformer.layers.1.mlp.fc.activation_scaling_factor"] *= 2
    save_file(state, folder / "rank1.safetensors")
    opened = open_trtllm(folder)
    with pytest.raises(TrtkitError) as caught:
        opened.checkpoint["model.layers.1.mlp.gate_proj.weight"]
    assert "ranks scale a layer's inputs differently" in str(caught.value)
    other = opened.checkpoint["model.layers.0.mlp.gate_proj.weight"]
    assert isinstance(other, QuantizedMatrix)
    assert isinstance(other.inputs, QuantizedInputs)
