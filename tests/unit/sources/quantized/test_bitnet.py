"""Ternary checkpoints: weights as transformers packs them, and logits of its own ternary models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitNetConfig, BitNetForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations.bitnet import pack_weights

from tests.support.decoders import Runner, T, builds, rtx
from trtkit.dtypes import FP16, FP32
from trtkit.errors import TrtkitError
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.planning.quantized_by import by_config
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.quantized_model import form_of
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.quantized.read import read_quantized

if TYPE_CHECKING:
    from trtkit.dtypes import DType

IDS = torch.randint(3, 72, (2, 21), generator=torch.Generator().manual_seed(1))
SIZES = {"num_hidden_layers": 2, "vocab_size": 72, "max_position_embeddings": 64, "pad_token_id": 0}
# Sizes that blocks of 32 and 64 divide, and sizes that none does.
EVEN = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, **SIZES}
ODD = {"hidden_size": 48, "intermediate_size": 52, "num_attention_heads": 6, "num_key_value_heads": 3, **SIZES}
OFFLINE = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE = {**OFFLINE, "quantization_mode": "online"}
BITLINEAR = {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]}
MODELS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "bitnet": (BitNetForCausalLM, EVEN, OFFLINE),
    "bitnet-odd-tied": (BitNetForCausalLM, {**ODD, "tie_word_embeddings": True}, OFFLINE),
    "bitnet-online": (BitNetForCausalLM, EVEN, ONLINE),
    "bitnet-kept": (BitNetForCausalLM, EVEN, {**ONLINE, "modules_to_not_convert": ["lm_head", "model.layers.1.mlp"]}),
    "llama": (LlamaForCausalLM, EVEN, BITLINEAR),
    "llama-biases": (LlamaForCausalLM, {**ODD, "attention_bias": True, "mlp_bias": True}, BITLINEAR),
}


def save(folder: Path, name: str) -> Path:
    """Write a tiny model as its tools store it."""
    architecture, sizes, section = MODELS[name]
    config = (BitNetConfig if architecture is BitNetForCausalLM else LlamaConfig)(**sizes)
    torch.manual_seed(3)
    architecture(config).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": section}
    (folder / "config.json").write_text(json.dumps(config))
    state = load_file(folder / "model.safetensors")
    for key in [key for key in state if key.endswith("_proj.weight") and section is not ONLINE]:
        if section.get("quantization_mode") == "online":
            continue
        weight, divides = state.pop(key), "linear_class" not in section
        scale = weight.abs().mean()
        state[key] = pack_weights((weight / scale).round().clamp(-1, 1))
        state[f"{key}_scale"] = (1 / scale if divides else scale)[None]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def graph_of(folder: Path, dtype: DType) -> Graph:
    source, graph = open_hf_folder(folder), Graph(rtx())
    spec = decoder_spec(source.config)
    options = DecoderOptions(dtype, T, has_all_logits=True)
    build_decoder(graph, spec, find_weights(spec, source.checkpoint), options)
    return graph


def expected(folder: Path) -> torch.Tensor:
    torch._dynamo.config.disable = True  # type: ignore[attr-defined]
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            logits: torch.Tensor = model(IDS).logits
    finally:
        torch._dynamo.config.disable = False  # type: ignore[attr-defined]
    return logits


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """But for inputs that stand between two of the 255 steps: one of them, in another order of sums, is 2e-4."""
    folder = save(tmp_path, name)
    runner = Runner(graph_of(folder, FP32))
    runner.reset(2)
    wanted = expected(folder)
    errors = (runner.step(IDS)["logits"] - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert errors.quantile(0.9) < 1e-6
    assert errors.max() < 1e-3


@pytest.mark.parametrize("name", ["bitnet", "bitnet-odd-tied"])
def test_tensorrt_builds_them(name: str, tmp_path: Path) -> None:
    assert builds(graph_of(save(tmp_path, name), FP16), capabilities=(89,))


@pytest.mark.parametrize("name", MODELS)
def test_the_plan_counts_what_the_network_holds(name: str, tmp_path: Path) -> None:
    source = open_hf_folder(save(tmp_path, name))
    section = MODELS[name][2]
    layers = by_config(decoder_spec(source.config), section, "config.json").layers
    held = {key.removesuffix(".weight"): source.checkpoint[key] for key in source.checkpoint}
    forms = [form_of(matrix) for matrix in held.values() if isinstance(matrix, QuantizedMatrix)]
    assert sorted(map(str, layers.values())) == sorted(map(str, forms))


def read(section: dict[str, Any], **tensors: np.ndarray[Any, Any]) -> Any:
    stored = {f"a.{name}": StoredArray(value.shape, lambda value=value: value) for name, value in tensors.items()}
    return read_quantized(Path("model"), {"quantization_config": section}, stored).stored["a.weight"].read()


def test_values_are_those_that_were_packed() -> None:
    values = torch.randint(-1, 2, (24, 40), generator=torch.Generator().manual_seed(0)).float()
    packed = pack_weights(values.clone()).numpy()
    scale = np.array([0.25], np.float32)
    assert np.array_equal(read(BITLINEAR, weight=packed, weight_scale=scale).weights(), 4 * values.numpy())
    assert np.array_equal(read(OFFLINE, weight=packed, weight_scale=scale).weights(), 0.25 * values.numpy())


@pytest.mark.parametrize(
    ("section", "packed", "message"),
    [
        ({**BITLINEAR, "use_rms_norm": True}, np.zeros((4, 64), np.uint8), "norms inside of linear layers are not"),
        ({**BITLINEAR, "linear_class": "x"}, np.zeros((4, 64), np.uint8), "`linear_class: x` with .* is not known"),
        (BITLINEAR, np.full((4, 64), 255, np.uint8), "`weight` holds values other than -1, 0 and 1"),
        (BITLINEAR, np.zeros((4, 64), np.float32), r"`weight` holds float32 of shape \[4, 64\]"),
    ],
)
def test_what_is_not_ternary_is_refused(section: dict[str, Any], packed: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(TrtkitError, match=message):
        read(section, weight=packed, weight_scale=np.array([0.5], np.float32))
