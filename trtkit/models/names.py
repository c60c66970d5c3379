"""Checkpoint names that several families share, as tables from trtkit's module paths to the checkpoint's names."""

from collections.abc import Mapping


def names(layer: str, outside: Mapping[str, str], inside: Mapping[str, str]) -> dict[str, str]:
    """Return a name table. layer: the checkpoint's prefix of layer `{i}`. inside: names below that prefix."""
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


BART_LAYER = {
    **{f"attention.{name}": f"self_attn.{name}_proj" for name in "qkv"},
    "attention.o": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}
"""Names inside a layer of BART and related models (OPT, Whisper)."""
EXPERT_NAMES = {
    "moe.router": "mlp.gate",
    "moe.experts.{e}.gate": "mlp.experts.{e}.gate_proj",
    "moe.experts.{e}.up": "mlp.experts.{e}.up_proj",
    "moe.experts.{e}.down": "mlp.experts.{e}.down_proj",
}
"""A mixture of experts, with Qwen's names."""
QWEN_EXPERT_NAMES = {
    **EXPERT_NAMES,
    "moe.shared.gate": "mlp.shared_expert.gate_proj",
    "moe.shared.up": "mlp.shared_expert.up_proj",
    "moe.shared.down": "mlp.shared_expert.down_proj",
    "moe.shared_router": "mlp.shared_expert_gate",
}
"""A mixture of experts with a shared expert, with Qwen's names."""

SHARED_EXPERT_NAMES = {
    **EXPERT_NAMES,
    **{f"moe.shared.{name}": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
    "moe.choice_bias": "mlp.gate.e_score_correction_bias",
}
"""A mixture with shared experts and a selection bias, with DeepSeek's names."""

LATENT_EXPERT_NAMES = {
    **SHARED_EXPERT_NAMES,
    "moe.latent.in": "mlp.fc1_latent_proj",
    "moe.latent.out": "mlp.fc2_latent_proj",
}
"""A mixture whose experts read a projection of the hidden state."""

GRANITE_EXPERT_NAMES = {
    "moe.router": "block_sparse_moe.router.layer",
    "moe.experts.{e}.gate": "block_sparse_moe.experts.{e}.gate_proj",
    "moe.experts.{e}.up": "block_sparse_moe.experts.{e}.up_proj",
    "moe.experts.{e}.down": "block_sparse_moe.experts.{e}.down_proj",
    "moe.shared.gate_up": "shared_mlp.input_linear",
    "moe.shared.down": "shared_mlp.output_linear",
}
"""A mixture of experts with a shared expert, with Granite's names."""

MIXTRAL_EXPERT_NAMES = {
    "moe.router": "block_sparse_moe.gate",
    "moe.experts.{e}.gate": "block_sparse_moe.experts.{e}.w1",
    "moe.experts.{e}.up": "block_sparse_moe.experts.{e}.w3",
    "moe.experts.{e}.down": "block_sparse_moe.experts.{e}.w2",
}
"""A mixture of experts, with Mixtral's names."""

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
    """Return Llama's names, which most families use, with changes outside and inside layers."""
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
"""GPT-2's names of config fields by their usual names."""


def gpt2_names(inside: Mapping[str, str]) -> dict[str, str]:
    """Return GPT-2's names, with a related model's names of the matrices inside layers."""
    outside = {
        "embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "lm_head": "lm_head",
    }
    return names("transformer.h.{i}.", outside, {"attention_norm": "ln_1", "mlp_norm": "ln_2", **inside})


_T5_LAYER = {
    "attention_norm": "layer.0.layer_norm",
    **{f"attention.{name}": f"layer.0.SelfAttention.{name}" for name in "qkvo"},
    "attention.relative_bias": "layer.0.SelfAttention.relative_attention_bias",
    "cross_norm": "layer.1.layer_norm",
    **{f"cross.{name}": f"layer.1.EncDecAttention.{name}" for name in "qo"},
    "mlp_norm": "layer.2.layer_norm",
    "mlp.gate": "layer.2.DenseReluDense.wi_0",
    "mlp.up": "layer.2.DenseReluDense.wi_1",
    "mlp.down": "layer.2.DenseReluDense.wo",
}
_T5_OUTSIDE = {"embedding": "shared", "final_norm": "decoder.final_layer_norm", "lm_head": "lm_head"}


def t5_names(*, is_gated: bool) -> dict[str, str]:
    """Return the names of T5's decoder."""
    mlp = {} if is_gated else {"mlp.up": "layer.2.DenseReluDense.wi"}
    return names("decoder.block.{i}.", _T5_OUTSIDE, {**_T5_LAYER, **mlp})
