"""What llama.cpp calls things, and how it stores them: architectures of 2024 and later.

Where Hugging Face's model turns neighbours (GLM 4, Command R7B, ERNIE 4.5), queries and keys are stored as they are.
"""

from __future__ import annotations

from trtkit.sources.gguf.layout import (
    ATTENTION,
    BIASES,
    EXPERT_FIELDS,
    FIELDS,
    GATED_MLP,
    GRANITE_FIELDS,
    LATER,
    LAYER_NORM_FIELDS,
    LLAMA_BLOCKS,
    MOE_BLOCKS,
    MOE_EXPERTS,
    NAMES,
    PERMUTED,
    QK_NORMS,
    RMS_FIELDS,
    GgufFamily,
)

_POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_PLAIN_MLP = {"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_SIGMOID = 2  # llama.cpp's number for what scores experts
_MLP_BIASES = {"mlp_bias": "ffn_up.bias"}

_SEED_OSS = GgufFamily(
    "seed_oss",
    RMS_FIELDS,
    NAMES,
    {**ATTENTION, "post_attention_norm": "post_attention_layernorm", **GATED_MLP},
    flags={**BIASES, **_MLP_BIASES, "attention_out_bias": "attn_output.bias"},
)
_ARCEE = GgufFamily(
    "arcee",
    RMS_FIELDS,
    NAMES,
    {**ATTENTION, "ffn_norm": "post_attention_layernorm", **_PLAIN_MLP},
    changes=PERMUTED,
    flags={**BIASES, **_MLP_BIASES},
)
_OLMOE = GgufFamily(
    "olmoe",
    {**RMS_FIELDS, **EXPERT_FIELDS},
    NAMES,
    {**MOE_BLOCKS, **QK_NORMS},
    experts=MOE_EXPERTS,
    fixed={"norm_topk_prob": False},
    flags=BIASES,
)
_GLM4 = GgufFamily(
    "glm4",
    RMS_FIELDS,
    NAMES,
    {
        **ATTENTION,
        "post_attention_norm": "post_self_attn_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    flags=BIASES,
    is_rope_partial=True,
)
_COHERE2 = GgufFamily(
    "cohere2", {**LAYER_NORM_FIELDS, **_WINDOW, "logit_scale": "logit_scale"}, NAMES, {**ATTENTION, **GATED_MLP},
    fixed={"sliding_window_pattern": 4},
)  # fmt: skip
_EXAONE4 = GgufFamily(
    "exaone4",
    {**RMS_FIELDS, **_WINDOW},
    NAMES,
    {name: hf for name, hf in {**ATTENTION, **QK_NORMS, **GATED_MLP, **_POST_NORMS}.items() if name != "attn_norm"},
    fixed={"sliding_window": None},
    has_layer_types=True,
)
_ERNIE4_5 = GgufFamily("ernie4_5", RMS_FIELDS, NAMES, LLAMA_BLOCKS, flags={"use_bias": "attn_q.bias"})
_NEMOTRON = GgufFamily(
    "nemotron",
    {**FIELDS, "attention.layer_norm_epsilon": "norm_eps", "attention.layer_norm_rms_epsilon": "norm_eps"},
    NAMES,
    {**ATTENTION, "ffn_norm": "post_attention_layernorm", **_PLAIN_MLP},
    changes={"attn_norm": "add_one", "ffn_norm": "add_one", "output_norm": "add_one"},
    flags={**BIASES, **_MLP_BIASES},
    is_rope_partial=True,
)
_HUNYUAN_DENSE = GgufFamily(
    "hunyuan_v1_dense",
    RMS_FIELDS,
    NAMES,
    {**LLAMA_BLOCKS, "attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    flags=BIASES,
)
_GPT_OSS = GgufFamily(
    "gpt_oss",
    {
        **RMS_FIELDS,
        **_WINDOW,
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "intermediate_size",
    },
    NAMES,
    {
        **ATTENTION,
        "attn_sinks.weight": "self_attn.sinks",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
    },
    experts=MOE_EXPERTS,
    flags=BIASES,
    yarn={"truncate": False},
)
_ROUTED_FIELDS = {
    **RMS_FIELDS,
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
}
_ROUTED_BLOCKS = {
    **ATTENTION,
    **QK_NORMS,
    **GATED_MLP,
    "ffn_gate_inp": "mlp.gate",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    **{f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
}
_GLM4_MOE = GgufFamily(
    "glm4_moe",
    {**_ROUTED_FIELDS, "nextn_predict_layers": LATER},
    NAMES,
    {**_ROUTED_BLOCKS, "post_attention_norm": "post_attention_layernorm"},
    experts=MOE_EXPERTS,
    flags={**BIASES, "use_qk_norm": "attn_q_norm.weight"},
    required={"expert_gating_func": _SIGMOID},
    is_rope_partial=True,
)
_DOTS1 = GgufFamily(
    "dots1",
    _ROUTED_FIELDS,
    NAMES,
    {**_ROUTED_BLOCKS, "ffn_norm": "post_attention_layernorm"},
    experts=MOE_EXPERTS,
    fixed={"sliding_window": None},
    flags=BIASES,
    required={"expert_gating_func": _SIGMOID},
)
_GRANITE_MOE = GgufFamily(
    "granitemoe",
    {
        **RMS_FIELDS,
        **GRANITE_FIELDS,
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
    },
    NAMES,
    {**MOE_BLOCKS, "ffn_gate_inp": "block_sparse_moe.router.layer"},
    changes=PERMUTED,
    experts={name: hf.replace("mlp", "block_sparse_moe") for name, hf in MOE_EXPERTS.items()},
    flags=BIASES,
)

RECENT = {
    "seed_oss": _SEED_OSS,
    "arcee": _ARCEE,
    "olmoe": _OLMOE,
    "glm4": _GLM4,
    "cohere2": _COHERE2,
    "exaone4": _EXAONE4,
    "ernie4_5": _ERNIE4_5,
    "nemotron": _NEMOTRON,
    "hunyuan-dense": _HUNYUAN_DENSE,
    "gpt-oss": _GPT_OSS,
    "glm4moe": _GLM4_MOE,
    "dots1": _DOTS1,
    "granitemoe": _GRANITE_MOE,
}
