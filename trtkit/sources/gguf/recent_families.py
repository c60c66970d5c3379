"""What llama.cpp calls things, and how it stores them: architectures of 2024 and later
without experts, and gpt-oss.

Where Hugging Face's model turns neighbours (GLM 4, Command R7B, ERNIE 4.5), queries and keys are stored as they are.
"""

from __future__ import annotations

from dataclasses import replace

from trtkit.sources.gguf.layout import (
    ATTENTION,
    BIASES,
    FIELDS,
    GATED_MLP,
    LAYER_NORM_FIELDS,
    LLAMA_BLOCKS,
    MOE_EXPERTS,
    NAMES,
    PERMUTED,
    QK_NORMS,
    RMS_FIELDS,
    WINDOW,
    GgufFamily,
)

_POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_PLAIN_MLP = {"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
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
_BITNET = GgufFamily(
    "bitnet",
    {**RMS_FIELDS, "hidden_act": "hidden_act"},
    NAMES,
    {**LLAMA_BLOCKS, "attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"},
    fixed={"hidden_act": "silu", "tie_word_embeddings": True},
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
    "cohere2", {**LAYER_NORM_FIELDS, **WINDOW, "logit_scale": "logit_scale"}, NAMES, {**ATTENTION, **GATED_MLP},
    fixed={"sliding_window_pattern": 4},
)  # fmt: skip
_EXAONE4 = GgufFamily(
    "exaone4",
    {**RMS_FIELDS, **WINDOW},
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
    changes={"attn_norm": ("add_one",), "ffn_norm": ("add_one",), "output_norm": ("add_one",)},
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
        **WINDOW,
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
_JAIS2 = GgufFamily(
    "jais2",
    LAYER_NORM_FIELDS,
    NAMES,
    {**ATTENTION, "ffn_norm": "post_attention_layernorm", **_PLAIN_MLP},
    flags={**BIASES, **_MLP_BIASES},
)
_APERTUS = GgufFamily(
    "apertus",
    RMS_FIELDS,
    NAMES,
    {**ATTENTION, **QK_NORMS, "attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm", **_PLAIN_MLP},
    stated={
        "xielu.alpha_n": ("mlp.act_fn.alpha_n", (1,)),
        "xielu.alpha_p": ("mlp.act_fn.alpha_p", (1,)),
        "xielu.beta": ("mlp.act_fn.beta", ()),
        "xielu.eps": ("mlp.act_fn.eps", ()),
    },
    flags=BIASES,
)
_MISTRAL3 = GgufFamily("mistral", RMS_FIELDS, NAMES, LLAMA_BLOCKS, changes=PERMUTED, fixed={"sliding_window": None})
_MINISTRAL3 = replace(
    _MISTRAL3,
    model_type="ministral3",
    yarn_weight="whole",
    grows=True,
)
_OLMO3 = GgufFamily(
    "olmo3",
    {**RMS_FIELDS, **WINDOW},
    NAMES,
    {name: hf for name, hf in {**ATTENTION, **QK_NORMS, **GATED_MLP, **_POST_NORMS}.items() if name != "attn_norm"},
    flags=BIASES,
    has_two_ropes=True,
    has_layer_types=True,
)

RECENT = {
    "seed_oss": _SEED_OSS,
    "arcee": _ARCEE,
    "bitnet": _BITNET,
    "glm4": _GLM4,
    "cohere2": _COHERE2,
    "exaone4": _EXAONE4,
    "ernie4_5": _ERNIE4_5,
    "nemotron": _NEMOTRON,
    "hunyuan-dense": _HUNYUAN_DENSE,
    "gpt-oss": _GPT_OSS,
    "jais2": _JAIS2,
    "apertus": _APERTUS,
    "mistral3": _MISTRAL3,
}
RECENT_VARIANTS = {
    "mistral3": {"attention.temperature_scale": _MINISTRAL3},
    "olmo2": {"attention.sliding_window": _OLMO3},
}
