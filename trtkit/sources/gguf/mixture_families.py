"""llama.cpp's names and storage layouts for mixtures of experts of 2024 and later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.sources.gguf.layout import (
    ATTENTION,
    BIASES,
    EXPERT_FIELDS,
    GATED_MLP,
    GRANITE_FIELDS,
    LATER,
    LLAMA_BLOCKS,
    MIXTRAL_EXPERTS,
    MOE_BLOCKS,
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
from trtkit.sources.gguf.metadata import sliding_types

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata

_SHARED = {f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")}
_LOCAL_FIELDS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
ROUTED_FIELDS = {
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
ROUTED_MLP = {
    **GATED_MLP,
    **_SHARED,
    "ffn_gate_inp": "mlp.gate",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
_GLM4_MOE = GgufFamily(
    "glm4_moe",
    {**ROUTED_FIELDS, "nextn_predict_layers": LATER},
    NAMES,
    {**ATTENTION, **QK_NORMS, **ROUTED_MLP, "post_attention_norm": "post_attention_layernorm"},
    experts=MOE_EXPERTS,
    flags={**BIASES, "use_qk_norm": "attn_q_norm.weight"},
    required={"expert_gating_func": SIGMOID},
    is_rope_partial=True,
)
_DOTS1 = GgufFamily(
    "dots1",
    ROUTED_FIELDS,
    NAMES,
    {**ATTENTION, **QK_NORMS, **ROUTED_MLP, "ffn_norm": "post_attention_layernorm"},
    experts=MOE_EXPERTS,
    fixed={"sliding_window": None},
    flags=BIASES,
    required={"expert_gating_func": SIGMOID},
)


def _exaone_layers(metadata: Metadata, _: GgufFile) -> Fields:
    """Return which layers use a sliding window and which are dense; blocks that predict later tokens come last."""
    count = int(metadata.need("block_count")) - int(metadata.get("nextn_predict_layers", 0))
    dense = int(metadata.get("leading_dense_block_count", 0))
    types = ["dense" if index < dense else "sparse" for index in range(count)]
    return {"layer_types": sliding_types(metadata)[:count], "mlp_layer_types": types}


_EXAONE_MOE = GgufFamily(
    "exaone_moe",
    {
        **ROUTED_FIELDS,
        **WINDOW,
        "expert_count": "num_experts",
        "expert_shared_count": "num_shared_experts",
        "nextn_predict_layers": LATER,
    },
    NAMES,
    {**LLAMA_BLOCKS, **QK_NORMS, **ROUTED_MLP, "exp_probs_b.bias": "mlp.e_score_correction_bias"},
    experts=MOE_EXPERTS,
    derived=_exaone_layers,
    required={"expert_gating_func": SIGMOID},
    ignored=("expert_shared_feed_forward_length",),
)
_GRANITE_MOE = GgufFamily(
    "granitemoe",
    {**RMS_FIELDS, **GRANITE_FIELDS, **_LOCAL_FIELDS},
    NAMES,
    {**MOE_BLOCKS, "ffn_gate_inp": "block_sparse_moe.router.layer"},
    changes=PERMUTED,
    experts={name: hf.replace("mlp", "block_sparse_moe") for name, hf in MOE_EXPERTS.items()},
    flags=BIASES,
)
GRANITE_SHARED = JoinedTensors("shared_mlp.input_linear", ("ffn_gate_shexp", "ffn_up_shexp"))
GRANITE_MOE_SHARED = replace(
    _GRANITE_MOE,
    model_type="granitemoeshared",
    fields={**_GRANITE_MOE.fields, "expert_shared_feed_forward_length": "shared_intermediate_size"},
    blocks={**_GRANITE_MOE.blocks, "ffn_down_shexp": "shared_mlp.output_linear"},
    joined=(GRANITE_SHARED,),
)
_ERNIE4_5_MOE = GgufFamily(
    "ernie4_5_moe",
    {
        **RMS_FIELDS,
        "expert_count": "moe_num_experts",
        "expert_used_count": "moe_k",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "moe_num_shared_experts",
        "interleave_moe_layer_step": "moe_layer_interval",
        "leading_dense_block_count": "moe_layer_start_index",
    },
    NAMES,
    {**LLAMA_BLOCKS, **ROUTED_MLP, "exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
    changes={"exp_probs_b.bias": ("as_row",)},
    experts=MOE_EXPERTS,
    flags={"use_bias": "attn_q.bias"},
    required={"expert_gating_func": SOFTMAX},
    ignored=("expert_shared_feed_forward_length",),  # not what the tensors have
)


def _hunyuan_sizes(metadata: Metadata, _: GgufFile) -> Fields:
    """Return the number of experts per token. Raises SourceError if experts and the MLP differ in size."""
    size = metadata.need("feed_forward_length")
    for key in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        if (stated := metadata.get(key, size)) != size:
            raise SourceError(f"`{key}` is `{stated}`, only `{size}` is supported", metadata.where)
    return {"moe_topk": metadata.need("expert_used_count")}


_HUNYUAN_MOE = GgufFamily(
    "hunyuan_v1_moe",
    {**RMS_FIELDS, "expert_count": "num_experts"},
    NAMES,
    {
        **MOE_BLOCKS,
        "attn_q_norm": "self_attn.query_layernorm",
        "attn_k_norm": "self_attn.key_layernorm",
        "ffn_gate_inp": "mlp.gate.wg",
        **{f"ffn_{name}_shexp": f"mlp.shared_mlp.{name}_proj" for name in ("gate", "up", "down")},
    },
    experts=MOE_EXPERTS,
    flags=BIASES,
    derived=_hunyuan_sizes,
    required={"expert_shared_count": 1},
)


def _rotated(metadata: Metadata, _: GgufFile) -> Fields:
    """Return the number of rotated elements of each head."""
    return {"rotary_dim": metadata.need("rope.dimension_count")}


_MINIMAX_M2 = GgufFamily(
    "minimax_m2",
    {**RMS_FIELDS, **_LOCAL_FIELDS, "expert_feed_forward_length": "intermediate_size"},
    NAMES,
    {
        **MOE_BLOCKS,
        **QK_NORMS,
        "ffn_gate_inp": "block_sparse_moe.gate",
        "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
    },
    experts=MIXTRAL_EXPERTS,
    derived=_rotated,
    required={"expert_gating_func": SIGMOID},
    is_rope_partial=True,
)
_PHIMOE = GgufFamily(
    "phimoe",
    {**RMS_FIELDS, **_LOCAL_FIELDS, **WINDOW},
    NAMES,
    {**MOE_BLOCKS, "ffn_gate_inp": "block_sparse_moe.gate"},
    experts=MIXTRAL_EXPERTS,
    fixed={"sliding_window": None, "router_jitter_noise": 0.01},  # as published: the file does not say
    flags={**BIASES, "lm_head_bias": "output.bias"},
)


def _chunks(metadata: Metadata, _: GgufFile) -> Fields:
    """Return what files omit: Llama 4's chunks, and query norms unless it has 128 experts."""
    return {
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
        "use_qk_norm": metadata.need("expert_count") != 128,
    }


_LLAMA4 = GgufFamily(
    "llama4_text",
    {
        **RMS_FIELDS,
        **_LOCAL_FIELDS,
        "feed_forward_length": "intermediate_size_mlp",
        "expert_feed_forward_length": "intermediate_size",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    },
    NAMES,
    {
        **MOE_BLOCKS,
        "ffn_gate_inp": "feed_forward.router",
        **{f"ffn_{name}": f"feed_forward.{name}_proj" for name in ("gate", "up", "down")},
        **{f"ffn_{name}_shexp": f"feed_forward.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
    },
    experts={name: hf.replace("mlp", "feed_forward") for name, hf in MOE_EXPERTS.items()},
    derived=_chunks,
    required={"attention.sliding_window": 8192},
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

MIXTURES = {
    "olmoe": _OLMOE,
    "glm4moe": _GLM4_MOE,
    "dots1": _DOTS1,
    "granitemoe": _GRANITE_MOE,
    "exaone-moe": _EXAONE_MOE,
    "ernie4_5-moe": _ERNIE4_5_MOE,
    "hunyuan-moe": _HUNYUAN_MOE,
    "minimax-m2": _MINIMAX_M2,
    "phimoe": _PHIMOE,
    "llama4": _LLAMA4,
}
MIXTURE_VARIANTS = {"granitemoe": {"expert_shared_feed_forward_length": GRANITE_MOE_SHARED}}
