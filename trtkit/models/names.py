"""Checkpoint names that several families share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def names(layer: str, outside: Mapping[str, str], inside: Mapping[str, str]) -> dict[str, str]:
    """Return a name table. layer: the checkpoint's prefix of a layer, with `{i}`; inside: names within a layer."""
    return {**outside, **{f"layers.{{i}}.{path}": layer + name for path, name in inside.items()}}


_LLAMA_OUTSIDE = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"}
_LLAMA_INSIDE = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


EXPERT_NAMES = {
    "moe.router": "mlp.gate",
    "moe.experts.{e}.gate": "mlp.experts.{e}.gate_proj",
    "moe.experts.{e}.up": "mlp.experts.{e}.up_proj",
    "moe.experts.{e}.down": "mlp.experts.{e}.down_proj",
}
"""A mixture of experts as Qwen's models name it."""

SANDWICH_NORMS = {
    "attention_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
"""Norms before and after each part (Gemma 2 and 3)."""
POST_NORMS = {name: SANDWICH_NORMS[name] for name in ("post_attention_norm", "post_mlp_norm")}
"""Norms after each part (OLMo 2 and 3, EXAONE 4)."""


def llama_names(outside: Mapping[str, str] | None = None, inside: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return Llama's names, which most families use, with changes outside and inside of layers."""
    return names("model.layers.{i}.", {**_LLAMA_OUTSIDE, **(outside or {})}, {**_LLAMA_INSIDE, **(inside or {})})


GPT2_ALIASES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "layer_norm_eps": "layer_norm_epsilon",
}
"""GPT-2's names of config fields."""


def gpt2_names(inside: Mapping[str, str]) -> dict[str, str]:
    """Return GPT-2's names, with those of its kin's matrices inside of layers."""
    outside = {
        "embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "lm_head": "lm_head",
    }
    return names("transformer.h.{i}.", outside, {"attention_norm": "ln_1", "mlp_norm": "ln_2", **inside})
