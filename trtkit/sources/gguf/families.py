"""What llama.cpp calls things, and how it stores them, by `general.architecture`.

Source: llama.cpp's convert_hf_to_gguf.py and src/llama-model.cpp, gguf-py's tensor_mapping.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Change = Literal["permute_q", "permute_k", "add_one", "transpose", "ungroup", "squeeze"]
"""What llama.cpp's converter did to a weight: see `trtkit.sources.gguf.weights`."""
Names = Mapping[str, str]


@dataclass(frozen=True)
class GgufFamily:
    """How one architecture is stored.

    model_type: Hugging Face's. fields: HF's field by metadata key, without the architecture in front.
    names: HF's module by llama.cpp's; `blk.{i}.` and `layers` stand in front of those in `blocks`.
    changes: by module in a block. experts: HF's modules with `{e}` for tensors that hold all experts.
    fixed: fields that the architecture implies. flags: fields that are true where block 0 has a tensor.
    is_rope_partial: `rope.dimension_count` may be less than head_dim. has_two_ropes: sliding layers have their own.
    head_scaled_at: with so many blocks, scores are scaled by hidden_size / heads; `query_pre_attn_scalar` says so.
    """

    model_type: str
    fields: Names
    names: Names
    blocks: Names
    layers: str = "model.layers.{i}."
    changes: Mapping[str, Change] = field(default_factory=dict)
    experts: Names = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    flags: Names = field(default_factory=dict)
    has_rope: bool = True
    is_rope_partial: bool = False
    has_two_ropes: bool = False
    head_scaled_at: int | None = None


_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}
_RMS_FIELDS = {**_FIELDS, "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
_LAYER_NORM_FIELDS = {**_FIELDS, "attention.layer_norm_epsilon": "layer_norm_eps"}
_EXPERT_FIELDS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GATED_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LLAMA_BLOCKS = {**_ATTENTION, "ffn_norm": "post_attention_layernorm", **_GATED_MLP}
_SANDWICH_BLOCKS = {
    **_ATTENTION,
    **_GATED_MLP,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MOE_BLOCKS = {**_ATTENTION, "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"}
_MOE_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
}
_PERMUTED: Mapping[str, Change] = {"attn_q": "permute_q", "attn_k": "permute_k"}
_BIASES = {"attention_bias": "attn_q.bias"}
_GELU = {"hidden_activation": "gelu_pytorch_tanh"}

_LLAMA = GgufFamily(
    "llama", _RMS_FIELDS, _NAMES, _LLAMA_BLOCKS, changes=_PERMUTED, flags={**_BIASES, "mlp_bias": "ffn_up.bias"}
)
MIXTRAL = replace(
    _LLAMA,
    model_type="mixtral",
    fields={**_RMS_FIELDS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    blocks={**_MOE_BLOCKS, "ffn_gate_inp": "block_sparse_moe.gate"},
    experts={
        "ffn_gate_exps": "block_sparse_moe.experts.{e}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{e}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{e}.w2",
    },
    fixed={"sliding_window": None},
    flags={},
)
"""Architecture `llama` with experts."""

_QWEN2 = GgufFamily("qwen2", _RMS_FIELDS, _NAMES, _LLAMA_BLOCKS, fixed={"use_sliding_window": False})
_QWEN2_MOE = replace(
    _QWEN2,
    model_type="qwen2_moe",
    fields={
        **_RMS_FIELDS,
        **_EXPERT_FIELDS,
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    blocks={
        **_MOE_BLOCKS,
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    },
    changes={"ffn_gate_inp_shexp": "squeeze"},
    experts=_MOE_EXPERTS,
    fixed={"use_sliding_window": False, "norm_topk_prob": False},
)
_QWEN3 = replace(_QWEN2, model_type="qwen3", blocks={**_LLAMA_BLOCKS, **_QK_NORMS}, flags=_BIASES)
_QWEN3_MOE = replace(
    _QWEN3,
    model_type="qwen3_moe",
    fields={**_RMS_FIELDS, **_EXPERT_FIELDS},
    blocks={**_MOE_BLOCKS, **_QK_NORMS},
    experts=_MOE_EXPERTS,
    fixed={"use_sliding_window": False, "norm_topk_prob": True},
)
_GEMMA = GgufFamily(
    "gemma",
    _RMS_FIELDS,
    _NAMES,
    _LLAMA_BLOCKS,
    changes={"attn_norm": "add_one", "ffn_norm": "add_one", "output_norm": "add_one"},
    fixed=_GELU,
)
_GEMMA2 = replace(
    _GEMMA,
    model_type="gemma2",
    fields={
        **_RMS_FIELDS,
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    blocks=_SANDWICH_BLOCKS,
    changes={**_GEMMA.changes, "post_attention_norm": "add_one", "post_ffw_norm": "add_one"},
    head_scaled_at=46,
)
_GEMMA3 = replace(
    _GEMMA2,
    model_type="gemma3_text",
    blocks={**_SANDWICH_BLOCKS, **_QK_NORMS},
    changes={**_GEMMA2.changes, "attn_q_norm": "add_one", "attn_k_norm": "add_one"},
    fixed={**_GELU, "sliding_window_pattern": 6},
    has_two_ropes=True,
    head_scaled_at=62,
)
_GPT2 = GgufFamily(
    "gpt2",
    {
        "block_count": "n_layer",
        "context_length": "n_positions",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    },
    {
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    {
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    layers="transformer.h.{i}.",
    changes=dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), "transpose"),
    has_rope=False,
)
_PHI2 = GgufFamily(
    "phi",
    _LAYER_NORM_FIELDS,
    {**_NAMES, "output_norm": "model.final_layernorm"},
    {**_ATTENTION, "attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    is_rope_partial=True,
)
_PHI3 = GgufFamily(
    "phi3",
    {
        **_RMS_FIELDS,
        "attention.sliding_window": "sliding_window",
        "rope.scaling.original_context_length": "original_max_position_embeddings",
    },
    _NAMES,
    {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    is_rope_partial=True,
)
_STARCODER2 = GgufFamily(
    "starcoder2",
    {**_FIELDS, "attention.layer_norm_epsilon": "norm_epsilon"},
    _NAMES,
    {**_ATTENTION, "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    fixed={"sliding_window": None},
    flags={"use_bias": "attn_q.bias"},
)
_STABLELM = GgufFamily(
    "stablelm",
    {**_LAYER_NORM_FIELDS, "use_parallel_residual": "use_parallel_residual"},
    _NAMES,
    _LLAMA_BLOCKS,
    flags={"use_qkv_bias": "attn_q.bias"},
    is_rope_partial=True,
)
_OLMO2 = GgufFamily(
    "olmo2",
    _RMS_FIELDS,
    _NAMES,
    {name: hf for name, hf in {**_SANDWICH_BLOCKS, **_QK_NORMS}.items() if name not in ("attn_norm", "ffn_norm")},
)
_GRANITE = replace(
    _LLAMA,
    model_type="granite",
    fields={
        **_RMS_FIELDS,
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
)
_COMMAND_R = GgufFamily(
    "cohere",
    {**_LAYER_NORM_FIELDS, "logit_scale": "logit_scale"},
    _NAMES,
    {**_ATTENTION, **_QK_NORMS, **_GATED_MLP},
    flags={"use_qk_norm": "attn_q_norm.weight"},
)
_GPT_NEOX = GgufFamily(
    "gpt_neox",
    {**_LAYER_NORM_FIELDS, "use_parallel_residual": "use_parallel_residual"},
    {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
    {
        "attn_norm": "input_layernorm",
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    layers="gpt_neox.layers.{i}.",
    changes={"attn_qkv": "ungroup"},
    is_rope_partial=True,
)

FAMILIES = {
    "llama": _LLAMA,
    "qwen2": _QWEN2,
    "qwen2moe": _QWEN2_MOE,
    "qwen3": _QWEN3,
    "qwen3moe": _QWEN3_MOE,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gpt2": _GPT2,
    "phi2": _PHI2,
    "phi3": _PHI3,
    "starcoder2": _STARCODER2,
    "stablelm": _STABLELM,
    "olmo2": _OLMO2,
    "granite": _GRANITE,
    "command-r": _COMMAND_R,
    "smollm3": replace(_LLAMA, model_type="smollm3", fixed={"no_rope_layer_interval": 4}),
    "gptneox": _GPT_NEOX,
}
