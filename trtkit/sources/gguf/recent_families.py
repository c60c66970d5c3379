"""llama.cpp's names and storage layouts for architectures of 2024 and later without experts, and for gpt-oss.

Where Hugging Face's model rotates adjacent pairs (GLM 4, Command R7B, ERNIE 4.5), queries and keys are stored
unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.sources.gguf.layout import (
    ATTENTION,
    BIASES,
    FIELDS,
    GATED_MLP,
    LATER,
    LAYER_NORM_FIELDS,
    LLAMA_BLOCKS,
    MOE_EXPERTS,
    NAMES,
    PERMUTED,
    QK_NORMS,
    RMS_FIELDS,
    SIGMOID,
    SOFTMAX,
    WINDOW,
    GgufFamily,
    JoinedTensors,
)
from trtkit.sources.gguf.mixture_families import ROUTED_FIELDS, ROUTED_MLP

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata


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


_OF_HEADS = ("attention.head_count_kv", "attention.key_length")
_RANKS = {"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank"}
_DENSE_FIELDS = {**{key: field for key, field in RMS_FIELDS.items() if key not in _OF_HEADS}, **_RANKS}
_OF_EXPERTS = {key: field for key, field in ROUTED_FIELDS.items() if key not in RMS_FIELDS}
_BLOCKS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}


def _sizes(metadata: Metadata, _: GgufFile) -> Fields:
    """Return the head sizes: from their own keys if the others describe compressed vectors."""
    keys, values = (
        int(metadata.get(f"attention.{name}_length_mla") or metadata.need(f"attention.{name}_length"))
        for name in ("key", "value")
    )
    metadata.ignore(*_OF_HEADS, "attention.value_length")
    return _rotated(metadata, keys) | {"v_head_dim": values}


def _rotated(metadata: Metadata, keys: int) -> Fields:
    """Return the sizes of keys' rotated and other parts, and that every query head has its own keys."""
    turned = int(metadata.need("rope.dimension_count"))
    heads = metadata.need("attention.head_count")
    return {"qk_rope_head_dim": turned, "qk_nope_head_dim": keys - turned, "num_key_value_heads": heads}


def _groups(metadata: Metadata, file: GgufFile) -> Fields:
    """Return `_sizes`, and whether experts are selected by group."""
    count = int(metadata.get("expert_group_count", 1))
    return _sizes(metadata, file) | {"topk_method": "group_limited_greedy" if count > 1 else "greedy"}


_YOUTU = GgufFamily(
    "youtu",
    _DENSE_FIELDS,
    NAMES,
    {**_BLOCKS, **GATED_MLP},
    joined=(JoinedTensors("self_attn.kv_b_proj", ("attn_k_b", "attn_v_b"), "latent"),),
    fixed={"q_lora_rank": None},
    flags=BIASES,
    derived=_sizes,
    yarn_weight="tenth",
    ignored=("expert_feed_forward_length", "leading_dense_block_count"),
    heads="latent",
)
_ROUTED = replace(
    _YOUTU,
    fields={**_DENSE_FIELDS, **_OF_EXPERTS, "nextn_predict_layers": LATER},
    blocks={**_BLOCKS, **ROUTED_MLP},
    experts=MOE_EXPERTS,
    ignored=(),
)
# What a file omits is off in llama.cpp, but not in Hugging Face's configs.
_DEEPSEEK_V2 = replace(
    _ROUTED,
    model_type="deepseek_v2",
    fixed={"q_lora_rank": None, "routed_scaling_factor": 1.0},
    derived=_groups,
    required={"expert_gating_func": SOFTMAX},
)
_DEEPSEEK_V3 = replace(
    _ROUTED,
    model_type="deepseek_v3",
    fixed={**_DEEPSEEK_V2.fixed, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    required={"expert_gating_func": SIGMOID},
)


def _minicpm3_sizes(metadata: Metadata, file: GgufFile) -> Fields:
    """Return the head sizes; the value heads' size follows from the tensors."""
    columns = file.tensors["blk.0.attn_output.weight"].shape[-1] if "blk.0.attn_output.weight" in file.tensors else 0
    keys = int(metadata.need("attention.key_length"))
    metadata.ignore("attention.value_length")
    return _rotated(metadata, keys) | {"v_head_dim": columns // int(metadata.need("attention.head_count"))}


_MINICPM3 = GgufFamily(
    "minicpm3",
    {**_DENSE_FIELDS, "attention.head_count_kv": "num_key_value_heads"},
    NAMES,
    {**_BLOCKS, **GATED_MLP},
    fixed={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},  # as published: the file does not say
    derived=_minicpm3_sizes,
    heads="latent",
)

LATENT = {"deepseek2": _YOUTU, "minicpm3": _MINICPM3}
LATENT_VARIANTS = {"deepseek2": {"exp_probs_b.bias": _DEEPSEEK_V3, "expert_count": _DEEPSEEK_V2}}
