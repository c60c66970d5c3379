"""EAGLE-3 heads in torch, made of transformers' Llama layers, and their folders in both published formats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

SIZES = {"hidden_size": 42, "intermediate_size": 56, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
_OWN = ("norm_before_residual", "norm_before_fc", "norm_output", "target_hidden_size", "eagle_config")


class Head(nn.Module):
    """A head with random weights. fields: its config.json, in SafeAILab's format."""

    def __init__(self, fields: dict[str, Any], *, fc_bias: bool = False, layers: int = 3) -> None:
        super().__init__()
        plain = {key: value for key, value in fields.items() if key not in (*_OWN, "draft_vocab_size", "architectures")}
        config = LlamaConfig(**plain, attn_implementation="eager")
        size, joined = config.hidden_size, layers * fields.get("target_hidden_size", config.hidden_size)
        self.fields = fields
        self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self.fc = nn.Linear(joined, size, bias=fc_bias)
        self.midlayer = LlamaDecoderLayer(config, 0)
        attention, bias = self.midlayer.self_attn, config.attention_bias
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(attention, name, nn.Linear(2 * size, getattr(attention, name).out_features, bias=bias))
        self.midlayer.hidden_norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.lm_head = nn.Linear(size, fields.get("draft_vocab_size", config.vocab_size), bias=False)
        self.input_norm = LlamaRMSNorm(joined, config.rms_norm_eps) if fields.get("norm_before_fc") else None
        self.rotary = LlamaRotaryEmbedding(config)
        for name, weight in self.named_parameters():
            is_matrix = weight.dim() > 1
            center = 0.0 if is_matrix or name.endswith("bias") else 1.0
            nn.init.normal_(weight, center, 1.5 * weight.shape[-1] ** -0.5 if is_matrix else 0.3)

    def fuse(self, hidden: Tensor) -> Tensor:
        """Project the model's concatenated hidden states [B, S, 3 * D']."""
        return self.fc(hidden if self.input_norm is None else self.input_norm(hidden))

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, S, V'] and the hidden states [B, S, D] for the next guess."""
        layer, count = self.midlayer, ids.shape[1]
        positions = self.rotary(hidden, torch.arange(count)[None])
        mask = torch.full((count, count), torch.finfo(hidden.dtype).min, dtype=hidden.dtype).triu(1)[None, None]
        normed = layer.hidden_norm(hidden)
        joined = torch.cat([layer.input_layernorm(self.embed_tokens(ids)), normed], -1)
        attended, _ = layer.self_attn(joined, position_embeddings=positions, attention_mask=mask)
        x = (normed if self.fields.get("norm_before_residual") else hidden) + attended
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        normed = self.norm(x)
        return self.lm_head(normed), normed if self.fields.get("norm_output") else x


def fields_of(vocab_size: int, **changes: Any) -> dict[str, Any]:
    """Return a config.json in SafeAILab's format."""
    named = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}
    return {
        **named,
        **SIZES,
        "vocab_size": vocab_size,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        **changes,
    }


def save_head(folder: Path, head: Head, ids: list[int] | None = None, *, is_nested: bool = False) -> Path:
    """Write a head's folder. ids: the model's ids of the head's tokens. is_nested: in the format of `speculators`."""
    folder.mkdir(parents=True, exist_ok=True)
    fields, layer = dict(head.fields), "layers.0." if is_nested else "midlayer."
    if is_nested:
        outer = {key: fields.pop(key) for key in (*_OWN, "draft_vocab_size") if key in fields}
        outer |= outer.pop("eagle_config", {})
        fields.pop("architectures")
        fields = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            **outer,
            "speculators_config": {"algorithm": "eagle3"},
            "transformer_layer_config": fields,
        }
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    weights = {name.replace("midlayer.", layer): value.contiguous() for name, value in head.state_dict().items()}
    if ids is not None:
        weights["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
        weights["t2d"] = torch.isin(torch.arange(fields_vocab(fields)), torch.tensor(ids))
    save_file(weights, folder / "model.safetensors")
    return folder


def fields_vocab(fields: dict[str, Any]) -> int:
    """Return the size of the model's vocabulary in a config.json."""
    return int(fields.get("transformer_layer_config", fields)["vocab_size"])
