"""Tiny models with an MTP module in their folders, and the module in torch.

A model of transformers with one layer too many is saved, so that the last one has the names that its authors' files
give to the module's layer. The module around it is written after what the authors' and vLLM's files compute.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

EXPERTS = {"moe_intermediate_size": 36, "num_experts_per_tok": 2}
SHARED = {
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SIZES: dict[str, dict[str, Any]] = {
    "glm4_moe": {
        **SHARED,
        **EXPERTS,
        "head_dim": 8,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "n_group": 1,
        "topk_group": 1,
    },
    "deepseek_v3": {
        **SHARED,
        **EXPERTS,
        "num_key_value_heads": 6,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 6,
        "n_group": 3,
        "topk_group": 2,
        "first_k_dense_replace": 1,
    },
    "qwen3_next": {
        **SHARED,
        **EXPERTS,
        "head_dim": 8,
        "num_experts": 5,
        "shared_expert_intermediate_size": 52,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
    },
}
_NEXT = "model.layers.{i}."
# What the module's weights are called in files.
NAMES = {
    "nextn": {
        "embedding_norm": _NEXT + "enorm",
        "hidden_norm": _NEXT + "hnorm",
        "projection": _NEXT + "eh_proj",
        "last_norm": _NEXT + "shared_head.norm",
    },
    "qwen": {
        "embedding_norm": "mtp.pre_fc_norm_embedding",
        "hidden_norm": "mtp.pre_fc_norm_hidden",
        "projection": "mtp.fc",
        "last_norm": "mtp.norm",
    },
}


class Module(nn.Module):
    """An MTP module. model: of transformers, whose last layer is the module's.

    Mistakes to plant: `swaps`, the hidden state comes first in the joined vector; `chains_raw`, the next guess is made
    from the hidden state before the last norm.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        size, eps = model.config.hidden_size, model.config.rms_norm_eps
        norm = type(model.model.norm)
        self.embedding_norm, self.hidden_norm, self.last_norm = norm(size, eps), norm(size, eps), norm(size, eps)
        self.projection = nn.Linear(2 * size, size, bias=False)
        self.layer = model.model.layers[-1]
        self.shared = {"table": model.model.embed_tokens, "head": model.lm_head, "rotary": model.model.rotary_emb}
        self.swaps, self.chains_raw = False, False

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, S, V] and hidden states for the next guess [B, S, D] of next tokens and hidden states."""
        count = ids.shape[1]
        parts = [self.embedding_norm(self.shared["table"](ids)), self.hidden_norm(hidden)]
        x = self.projection(torch.cat(parts[::-1] if self.swaps else parts, -1))
        mask = torch.full((count, count), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)[None, None]
        positions = torch.arange(count)[None]
        x = self.layer(
            x,
            position_embeddings=self.shared["rotary"](x, positions),
            attention_mask=mask,
            position_ids=positions,
        )
        normed = self.last_norm(x)
        return self.shared["head"](normed), x if self.chains_raw else normed


@dataclass(frozen=True, eq=False)
class Pair:
    """A model of transformers with its module. The model has only its own layers."""

    model: Any
    module: Module

    def hidden(self, ids: Tensor, *, is_raw: bool = False) -> Tensor:
        """Return the model's hidden states [B, S, D] after the final norm. is_raw: before it."""
        kept: list[Tensor] = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda _, arguments: kept.append(arguments[0]))
        normed = self.model.model(ids, use_cache=False).last_hidden_state
        hook.remove()
        return kept[0] if is_raw else normed


def new_pair(model_type: str, layers: int = 2, **changes: Any) -> Pair:
    """Return a model of `layers` and its module, every weight random."""
    sizes = {**SIZES[model_type], "num_hidden_layers": layers + 1, **changes}
    if model_type == "qwen3_next":
        sizes["layer_types"] = [*(["linear_attention", "full_attention"] * layers)[:layers], "full_attention"]
    config = AutoConfig.for_model(model_type, **sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
    module = Module(model).eval()
    for part in (model, module):
        tensors = [*part.named_parameters(), *(each for each in part.named_buffers() if "score_correction" in each[0])]
        for name, weight in tensors:
            is_matrix, is_gain = weight.dim() > 1, "norm" in name and model_type != "qwen3_next"
            deviation = 1.5 * weight.shape[-1] ** -0.5 if is_matrix else 0.3
            nn.init.normal_(weight, float(is_gain and not is_matrix), deviation)
    return Pair(model, module)


def without_last_layer(pair: Pair) -> Pair:
    """Take the module's layer out of the model, which then computes what its authors' config says."""
    model = pair.model
    model.model.layers = model.model.layers[:-1]
    model.config.num_hidden_layers -= 1
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(model.config, name, None):
            setattr(model.config, name, getattr(model.config, name)[:-1])
    return pair


def save(folder: Path, pair: Pair, *, repeats_shared: bool = False) -> Path:
    """Write the folder of a model with its module, as the authors' are, and take the layer out of the model.

    repeats_shared: the module's copies of embedding and LM head are stored too, as DeepSeek's files do.
    """
    pair.model.save_pretrained(folder)
    path, fields = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    weights, last = load_file(path), fields["num_hidden_layers"] - 1
    is_qwen = fields["model_type"] == "qwen3_next"
    if is_qwen:
        weights = {name.replace(f"model.layers.{last}.", "mtp.layers.0."): each for name, each in weights.items()}
    for own, name in NAMES["qwen" if is_qwen else "nextn"].items():
        weights[f"{name.format(i=last)}.weight"] = getattr(pair.module, own).weight.detach().clone()
    if repeats_shared:
        start = _NEXT.format(i=last)
        weights[f"{start}embed_tokens.weight"] = pair.module.shared["table"].weight.detach().clone()
        weights[f"{start}shared_head.head.weight"] = pair.module.shared["head"].weight.detach().clone()
    save_file({name: each.contiguous() for name, each in weights.items()}, path, metadata={"format": "pt"})
    fields["num_hidden_layers"] = last
    if not is_qwen:
        fields["num_nextn_predict_layers"] = 1
    for name in ("layer_types", "mlp_layer_types"):
        if fields.get(name):
            fields[name] = fields[name][:-1]
    (folder / "config.json").write_text(json.dumps(fields))
    without_last_layer(pair)
    return folder
