"""What llama.cpp calls things, and how it stores them: architectures with gated delta nets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.sources.gguf.derived import kinds, mamba_head
from trtkit.sources.gguf.layout import (
    ATTENTION,
    BIASES,
    EXPERT_FIELDS,
    FULL_ATTENTION,
    GATED_MLP,
    LATER,
    MOE_EXPERTS,
    NAMES,
    QK_NORMS,
    RMS_FIELDS,
    Change,
    GgufFamily,
    Joined,
)

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata


def _delta_layers(metadata: Metadata, file: GgufFile) -> Fields:
    """Return which layers are which, and the size of a value head."""
    types = kinds(metadata, file, FULL_ATTENTION, "linear_attention")
    own = len(types) - int(metadata.get("nextn_predict_layers", 0))
    return {"linear_value_head_dim": mamba_head(metadata), "layer_types": types[:own]}


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
    joined=(Joined("linear_attn.in_proj_qkvz", ("attn_qkv", "attn_gate"), "delta"),),
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
    # Positions of text are the same in all sections of M-RoPE.
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
