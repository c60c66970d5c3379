"""llama.cpp's names and storage layouts, by `general.architecture`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.sources.gguf.gemma_families import GEMMAS
from trtkit.sources.gguf.layout import (
    ATTENTION,
    BIASES,
    EXPERT_FIELDS,
    FIELDS,
    FULL_ATTENTION,
    GATED_MLP,
    GELU,
    GPT2_BLOCKS,
    GPT2_NAMES,
    GRANITE_FIELDS,
    LATER,
    LAYER_NORM_FIELDS,
    LLAMA_BLOCKS,
    MIXTRAL_EXPERTS,
    MOE_BLOCKS,
    MOE_EXPERTS,
    NAMES,
    PERMUTED,
    QK_NORMS,
    RMS_FIELDS,
    SANDWICH_BLOCKS,
    Change,
    GgufFamily,
    JoinedTensors,
)
from trtkit.sources.gguf.mamba_families import MAMBA_VARIANTS, MAMBAS
from trtkit.sources.gguf.metadata import head_dim, kinds, mamba_head
from trtkit.sources.gguf.mixture_families import MIXTURE_VARIANTS, MIXTURES
from trtkit.sources.gguf.recent_families import LATENT, LATENT_VARIANTS, RECENT, RECENT_VARIANTS

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata


_EPS = {"attention.layer_norm_epsilon": "layer_norm_epsilon"}
_WORDS = {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f", "output": "lm_head"}
_DENSE_MLP = {"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
_JOINED_ATTENTION = {"attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense"}
_WQKV = {"attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj"}


def _falcon_groups(metadata: Metadata, _: GgufFile) -> Fields:
    """Return whether queries share keys in groups: they do in Falcon 2; the first 7B has one key head for all."""
    is_new = int(metadata.get("attention.head_count_kv", 1)) > 1
    return {"new_decoder_architecture": is_new, **({"num_ln_in_parallel_attn": 1} if is_new else {})}


_FALCON = GgufFamily(
    "falcon",
    {
        **{key: field for key, field in FIELDS.items() if key != "attention.key_length"},
        **_EPS,
        "attention.head_count_kv": "num_kv_heads",
        "feed_forward_length": "ffn_hidden_size",
    },
    _WORDS,
    {"attn_norm": "input_layernorm", **_JOINED_ATTENTION, **_DENSE_MLP},
    layers="transformer.h.{i}.",
    changes={"attn_qkv": ("ungroup_shared",)},
    fixed={"alibi": False, "multi_query": True, "parallel_attn": True},
    flags={"bias": "attn_qkv.bias"},
    derived=_falcon_groups,
)
_FALCON_40B = replace(
    _FALCON,
    blocks={"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn", **_JOINED_ATTENTION, **_DENSE_MLP},
    fixed={**_FALCON.fixed, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 2},
    derived=None,
)
_BLOOM = GgufFamily(
    "bloom",
    {"block_count": "n_layer", "embedding_length": "hidden_size", "attention.head_count": "n_head", **_EPS},
    {**_WORDS, "token_embd_norm": "transformer.word_embeddings_layernorm"},
    {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        **_JOINED_ATTENTION,
        **_DENSE_MLP,
    },
    layers="transformer.h.{i}.",
    changes={"attn_qkv": ("ungroup",)},
    ignored=("context_length", "feed_forward_length"),
    has_rope=False,
)
_STARCODER = GgufFamily(
    "gpt_bigcode",
    {
        "block_count": "n_layer",
        "context_length": "n_positions",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
        "attention.head_count_kv": "num_key_value_heads",
        **_EPS,
    },
    GPT2_NAMES,
    GPT2_BLOCKS,
    layers="transformer.h.{i}.",
    fixed={"multi_query": True},
    required={"attention.head_count_kv": 1},
    has_rope=False,
)


def _mpt_attention(metadata: Metadata, _: GgufFile) -> Fields:
    """Return `attn_config`; a bias of 0 means no bias."""
    largest = int(metadata.get("attention.max_alibi_bias", 0))
    clip = metadata.get("attention.clamp_kqv")
    return {"attn_config": {"alibi": largest > 0, "alibi_bias_max": largest, "clip_qkv": clip}}


_MPT = GgufFamily(
    "mpt",
    {
        "block_count": "n_layers",
        "context_length": "max_seq_len",
        "embedding_length": "d_model",
        "attention.head_count": "n_heads",
        **_EPS,
    },
    {"token_embd": "transformer.wte", "output_norm": "transformer.norm_f", "output": "lm_head"},
    {
        "attn_norm": "norm_1",
        **_WQKV,
        "ffn_norm": "norm_2",
        "ffn_up": "ffn.up_proj",
        "ffn_down": "ffn.down_proj",
    },
    layers="transformer.blocks.{i}.",
    derived=_mpt_attention,
    ignored=("feed_forward_length",),
    has_rope=False,
)
_OLMO = GgufFamily(
    "olmo",
    {**FIELDS, "attention.clamp_kqv": "clip_qkv"},
    NAMES,
    {name: hf for name, hf in {**ATTENTION, **GATED_MLP}.items() if name != "attn_norm"},
    changes=PERMUTED,
    required={"attention.layer_norm_epsilon": 1e-5},
)


def _glm_attention(metadata: Metadata, file: GgufFile) -> Fields:
    """Return the head size, which files omit, and whether queries have a bias, in any storage layout."""
    names = ("blk.0.attn_q.bias", "blk.0.attn_qkv.bias")
    return {"head_dim": head_dim(metadata), "attention_bias": any(name in file.tensors for name in names)}


_GLM = GgufFamily(
    "glm",
    RMS_FIELDS,
    NAMES,
    {name: hf for name, hf in LLAMA_BLOCKS.items() if name != "ffn_gate"} | {"ffn_up": "mlp.gate_up_proj"},
    split={"attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    derived=_glm_attention,
    is_rope_partial=True,
)

EARLY = {
    "falcon": _FALCON,
    "bloom": _BLOOM,
    "starcoder": _STARCODER,
    "mpt": _MPT,
    "olmo": _OLMO,
    "chatglm": _GLM,
}
EARLY_VARIANTS = {"falcon": {"blk.0.attn_norm_2.weight": _FALCON_40B}}


def _delta_layers(metadata: Metadata, file: GgufFile) -> Fields:
    """Return the types of layers, and the size of a value head."""
    types = kinds(metadata, file, FULL_ATTENTION, "linear_attention")
    count = len(types) - int(metadata.get("nextn_predict_layers", 0))
    return {"linear_value_head_dim": mamba_head(metadata), "layer_types": types[:count]}


_DELTA_FIELDS = {
    **RMS_FIELDS,
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "nextn_predict_layers": LATER,
}
_DELTA_BLOCKS = {
    **ATTENTION,
    **QK_NORMS,
    "post_attention_norm": "post_attention_layernorm",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_OFFSET_NORMS = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "output_norm")
_DELTA_CHANGES: dict[str, tuple[Change, ...]] = {
    **dict.fromkeys(_OFFSET_NORMS, ("add_one",)),
    "ssm_a": ("log_negate",),
    "ssm_conv1d": ("expand",),
}
_EXPERT_BLOCKS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{name}_shexp": f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
}
_QWEN_EXPERT_FIELDS = {**EXPERT_FIELDS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
_QWEN3_NEXT = GgufFamily(
    "qwen3_next",
    {**_DELTA_FIELDS, **_QWEN_EXPERT_FIELDS},
    NAMES,
    {
        **_DELTA_BLOCKS,
        **_EXPERT_BLOCKS,
        "ssm_in": "linear_attn.in_proj_qkvz",
        "ssm_ba": "linear_attn.in_proj_ba",
    },
    changes={**_DELTA_CHANGES, "ffn_gate_inp_shexp": ("squeeze",)},
    experts=MOE_EXPERTS,
    joined=(JoinedTensors("linear_attn.in_proj_qkvz", ("attn_qkv", "attn_gate"), "delta"),),
    fixed={"norm_topk_prob": True},
    flags=BIASES,
    derived=_delta_layers,
    ignored=("full_attention_interval",),
    is_rope_partial=True,
)
_QWEN3_5 = replace(
    _QWEN3_NEXT,
    model_type="qwen3_5_text",
    fields=_DELTA_FIELDS,
    blocks={
        **_DELTA_BLOCKS,
        **GATED_MLP,
        "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_beta": "linear_attn.in_proj_b",
    },
    changes={
        **_DELTA_CHANGES,
        "ssm_a": ("log_negate", "untile"),
        "ssm_conv1d": ("untile_values", "expand"),
        "attn_qkv": ("untile_values",),
        **dict.fromkeys(("ssm_dt.bias", "attn_gate", "ssm_alpha", "ssm_beta"), ("untile",)),
        "ssm_out": ("untile_columns",),
    },
    experts={},
    joined=(),
    fixed={},
    # Text positions are the same in all sections of M-RoPE.
    ignored=("full_attention_interval", "rope.dimension_sections"),
)
_QWEN3_5_MOE = replace(
    _QWEN3_5,
    model_type="qwen3_5_moe_text",
    fields={**_DELTA_FIELDS, **_QWEN_EXPERT_FIELDS},
    blocks={**{name: hf for name, hf in _QWEN3_5.blocks.items() if name not in GATED_MLP}, **_EXPERT_BLOCKS},
    changes={**_QWEN3_5.changes, "ffn_gate_inp_shexp": ("squeeze",)},
    experts=MOE_EXPERTS,
)

DELTA_NETS = {"qwen3next": _QWEN3_NEXT, "qwen35": _QWEN3_5, "qwen35moe": _QWEN3_5_MOE}


_LLAMA = GgufFamily(
    "llama", RMS_FIELDS, NAMES, LLAMA_BLOCKS, changes=PERMUTED, flags={**BIASES, "mlp_bias": "ffn_up.bias"}
)
_MIXTRAL = replace(
    _LLAMA,
    model_type="mixtral",
    fields={**RMS_FIELDS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    blocks={**MOE_BLOCKS, "ffn_gate_inp": "block_sparse_moe.gate"},
    experts=MIXTRAL_EXPERTS,
    fixed={"sliding_window": None},
    flags={},
)
"""Architecture `llama` with experts."""

# Text positions are the same in all sections of M-RoPE, and the file has no vision tower.
_OF_IMAGES = ("rope.dimension_sections", "n_deepstack_layers")
_QWEN2 = GgufFamily("qwen2", RMS_FIELDS, NAMES, LLAMA_BLOCKS, fixed={"use_sliding_window": False})
_QWEN2_MOE = replace(
    _QWEN2,
    model_type="qwen2_moe",
    fields={
        **RMS_FIELDS,
        **EXPERT_FIELDS,
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    blocks={
        **MOE_BLOCKS,
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    },
    changes={"ffn_gate_inp_shexp": ("squeeze",)},
    experts=MOE_EXPERTS,
    fixed={"use_sliding_window": False, "norm_topk_prob": False},
)
_QWEN3 = replace(_QWEN2, model_type="qwen3", blocks={**LLAMA_BLOCKS, **QK_NORMS}, flags=BIASES)
_QWEN3_MOE = replace(
    _QWEN3,
    model_type="qwen3_moe",
    fields={**RMS_FIELDS, **EXPERT_FIELDS},
    blocks={**MOE_BLOCKS, **QK_NORMS},
    experts=MOE_EXPERTS,
    fixed={"use_sliding_window": False, "norm_topk_prob": True},
)
_GEMMA = GgufFamily(
    "gemma",
    RMS_FIELDS,
    NAMES,
    LLAMA_BLOCKS,
    changes={"attn_norm": ("add_one",), "ffn_norm": ("add_one",), "output_norm": ("add_one",)},
    fixed=GELU,
)
_GEMMA2 = replace(
    _GEMMA,
    model_type="gemma2",
    fields={
        **RMS_FIELDS,
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    blocks=SANDWICH_BLOCKS,
    changes={**_GEMMA.changes, "post_attention_norm": ("add_one",), "post_ffw_norm": ("add_one",)},
    head_scaled_at=46,
)
_GEMMA3 = replace(
    _GEMMA2,
    model_type="gemma3_text",
    blocks={**SANDWICH_BLOCKS, **QK_NORMS},
    changes={**_GEMMA2.changes, "attn_q_norm": ("add_one",), "attn_k_norm": ("add_one",)},
    fixed={**GELU, "sliding_window_pattern": 6},
    has_two_ropes=True,
    near_theta=10000.0,
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
    GPT2_NAMES,
    GPT2_BLOCKS,
    layers="transformer.h.{i}.",
    changes=dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), ("transpose",)),
    has_rope=False,
)
_PHI2 = GgufFamily(
    "phi",
    LAYER_NORM_FIELDS,
    {**NAMES, "output_norm": "model.final_layernorm"},
    {**ATTENTION, "attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    is_rope_partial=True,
)
_PHI3 = GgufFamily(
    "phi3",
    {
        **RMS_FIELDS,
        "attention.sliding_window": "sliding_window",
        "rope.scaling.original_context_length": "original_max_position_embeddings",
    },
    NAMES,
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
    {**FIELDS, "attention.layer_norm_epsilon": "norm_epsilon"},
    NAMES,
    {**ATTENTION, "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    fixed={"sliding_window": None},
    flags={"use_bias": "attn_q.bias"},
)
_STABLELM = GgufFamily(
    "stablelm",
    {**LAYER_NORM_FIELDS, "use_parallel_residual": "use_parallel_residual"},
    NAMES,
    LLAMA_BLOCKS,
    flags={"use_qkv_bias": "attn_q.bias"},
    is_rope_partial=True,
)
_OLMO2 = GgufFamily(
    "olmo2",
    RMS_FIELDS,
    NAMES,
    {name: hf for name, hf in {**SANDWICH_BLOCKS, **QK_NORMS}.items() if name not in ("attn_norm", "ffn_norm")},
)
_GRANITE = replace(
    _LLAMA,
    model_type="granite",
    fields={**RMS_FIELDS, **GRANITE_FIELDS},
)
_COMMAND_R = GgufFamily(
    "cohere",
    {**LAYER_NORM_FIELDS, "logit_scale": "logit_scale"},
    NAMES,
    {**ATTENTION, **QK_NORMS, **GATED_MLP},
    flags={"use_qk_norm": "attn_q_norm.weight"},
)
_GPT_NEOX = GgufFamily(
    "gpt_neox",
    {**LAYER_NORM_FIELDS, "use_parallel_residual": "use_parallel_residual"},
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
    changes={"attn_qkv": ("ungroup",)},
    is_rope_partial=True,
)

FAMILIES = {
    "llama": _LLAMA,
    "qwen2": _QWEN2,
    "qwen2moe": _QWEN2_MOE,
    "qwen3": _QWEN3,
    "qwen3moe": _QWEN3_MOE,
    "qwen2vl": replace(_QWEN2, ignored=_OF_IMAGES),
    "qwen3vl": replace(_QWEN3, ignored=_OF_IMAGES),
    "qwen3vlmoe": replace(_QWEN3_MOE, ignored=_OF_IMAGES),
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
    **EARLY,
    **DELTA_NETS,
    **GEMMAS,
    **LATENT,
    **MAMBAS,
    **MIXTURES,
    **RECENT,
}

VARIANTS = {
    "llama": {"expert_count": _MIXTRAL},
    **EARLY_VARIANTS,
    **LATENT_VARIANTS,
    **MAMBA_VARIANTS,
    **MIXTURE_VARIANTS,
    **RECENT_VARIANTS,
}
"""By architecture: families of files that have a tensor, or a nonzero metadata key; the first match applies."""
