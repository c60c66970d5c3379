"""Tiny Llamas with quantized linear layers, in the formats of quantization tools.

Packed words and scales are random, since every bit pattern is a valid layer of AWQ or GPTQ. That readers decode them as
their libraries do is tested layer by layer in tests/unit/sources/quantized; these models test the network.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

State = dict[str, torch.Tensor]
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 72, "max_position_embeddings": 64}
GROUP = 32


def words(rows: int, columns: int) -> torch.Tensor:
    """Return random bits."""
    return torch.randint(-(2**31), 2**31 - 1, (rows, columns), dtype=torch.int64).to(torch.int32)


def positive(*shape: int, mean: float = 1.0) -> torch.Tensor:
    return (mean * (0.5 + torch.rand(*shape))).half()


def awq(out: int, size: int) -> State:
    groups = size // GROUP
    scales = positive(groups, out, mean=0.25 * size**-0.5)
    return {"qweight": words(size, out // 8), "qzeros": words(groups, out // 8), "scales": scales}


def gptq(out: int, size: int, bits: int, *, is_ordered: bool = True) -> State:
    groups, per_word = size // GROUP, 32 // bits
    order = torch.arange(size) if is_ordered else torch.randperm(size, generator=torch.Generator().manual_seed(size))
    scales = positive(groups, out, mean=4 * 2.0**-bits * size**-0.5)
    state = {"qweight": words(size // per_word, out), "qzeros": words(groups, out // per_word), "scales": scales}
    return state | {"g_idx": (order // GROUP).to(torch.int32)}


def eight_bits(out: int, size: int, dtype: torch.dtype, *, has_input_scale: bool) -> State:
    """Return int8 or fp8 with a scale per row, in compressed-tensors' format."""
    limit = 127.0 if dtype == torch.int8 else 448.0
    weight = torch.randn(out, size) * size**-0.5
    scale = weight.abs().amax(1, keepdim=True) / limit
    codes = (weight / scale).round() if dtype == torch.int8 else weight / scale
    state = {"weight": codes.to(dtype), "weight_scale": scale}
    return state | ({"input_scale": torch.tensor(4 / limit)} if has_input_scale else {})


def fp8_blocks(out: int, size: int) -> State:
    codes = (torch.randn(out, size) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    grid = positive(-(-out // 32), size // 32, mean=0.01 * size**-0.5).float()
    return {"weight": codes, "weight_scale_inv": grid}


def group_of(weights: Any, inputs: Any = None) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}}


ROWS_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
ROWS_FP8 = ROWS_INT8 | {"type": "float"}
TOKEN = {"strategy": "token", "dynamic": True, "symmetric": True}
STATIC = {"strategy": "tensor", "dynamic": False, "symmetric": True}
COMPRESSED = {"quant_method": "compressed-tensors"}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
FORMATS: dict[str, tuple[Callable[[int, int], State], dict[str, Any]]] = {
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
    "gptq": (lambda out, size: gptq(out, size, 4), _GPTQ),
    "gptq-act-order": (lambda out, size: gptq(out, size, 4, is_ordered=False), _GPTQ | {"desc_act": True}),
    "gptq-8bit": (lambda out, size: gptq(out, size, 8), _GPTQ | {"bits": 8}),
    "int8-static": (
        lambda out, size: eight_bits(out, size, torch.int8, has_input_scale=True),
        COMPRESSED | {"format": "int-quantized"} | group_of(ROWS_INT8, STATIC),
    ),
    "int8-by-token": (
        lambda out, size: eight_bits(out, size, torch.int8, has_input_scale=False),
        COMPRESSED | {"format": "int-quantized"} | group_of(ROWS_INT8, TOKEN),
    ),
    "fp8-by-token": (
        lambda out, size: eight_bits(out, size, torch.float8_e4m3fn, has_input_scale=False),
        COMPRESSED | {"format": "float-quantized"} | group_of(ROWS_FP8, TOKEN),
    ),
    "fp8-blocks": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [32, 32]}),
}
WEIGHT_ONLY = ("awq", "gptq", "gptq-act-order", "gptq-8bit", "fp8-blocks")


def save_llama(folder: Path, name: str) -> Path:
    """Save a Llama in one of FORMATS, with embedding and LM head in fp32."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    return _save(folder, model, name)


def save_gpt2(folder: Path, name: str) -> Path:
    """Save a GPT-2, which transformers stores as [in, out], in one of FORMATS."""
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_inner": 96, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 72}
    return _save(folder, GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)), name)


def save_mixture(folder: Path, name: str) -> Path:
    """Save a mixture with a shared expert, whose experts are separate layers, in one of FORMATS."""
    torch.manual_seed(0)
    experts = {"moe_intermediate_size": 32, "num_experts": 5, "num_experts_per_tok": 2}
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**SIZES, **experts, shared_expert_intermediate_size=64))
    return _save(folder, model, name)


def _save(folder: Path, model: Any, name: str) -> Path:
    layer, quantization = FORMATS[name]
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    for full in [key for key in state if key.endswith(("_proj.weight", "c_attn.weight", "c_fc.weight"))]:
        shape = state.pop(full).shape
        out, size = shape[::-1] if isinstance(model, GPT2LMHeadModel) else shape
        state |= {full.replace("weight", part): value for part, value in layer(out, size).items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    return folder
