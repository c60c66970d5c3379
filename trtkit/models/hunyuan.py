"""Hunyuan's attention, and what its dense models and its mixtures state alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.models.attention import RopeSpec
from trtkit.models.parts import biased_attention_part, rms_norm_part
from trtkit.models.rope import rope_spec

if TYPE_CHECKING:
    from trtkit.models.attention import AttentionSpec
    from trtkit.models.hf_config import HfConfig

NAMES = {"attention.q_norm": "self_attn.query_layernorm", "attention.k_norm": "self_attn.key_layernorm"}
# Fields of published files that the config classes do not have: what they switch is always so, or has no effect.
FIXED = {"use_qk_norm": True, "use_cla": False, "norm_type": "rms", "mlp_bias": False, "use_rotary_pos_emb": True}
IMMATERIAL = ("eod_token_id", "cla_share_factor", "org_vocab_size", "class_num", "dense_list", "pool_type")


def hunyuan_attention(config: HfConfig) -> AttentionSpec:
    """Return attention whose queries and keys are normed after they turn. Raises SourceError for other kinds."""
    attention = biased_attention_part(config)
    for name, value in (*FIXED.items(), ("attention_head_dim", attention.head_dim)):
        config.refuse(name, value)
    for name in IMMATERIAL:
        config.get(name)
    return replace(attention, norm=rms_norm_part(config), qk_norm="head", is_rotated_first=True)


def hunyuan_rope(config: HfConfig, head_dim: int) -> RopeSpec:
    """Return the rotary embedding. `dynamic` with a fixed `alpha` only stretches the base, at every length."""
    stated = config.get("rope_parameters", {}) or config.get("rope_scaling", {})
    kind = stated.get("rope_type", stated.get("type"))
    if kind != "dynamic" or not stated.get("alpha"):
        return rope_spec(config, head_dim)
    theta = float(stated.get("rope_theta", config.get("rope_theta", 10000.0)))
    return RopeSpec(theta * float(stated["alpha"]) ** (head_dim / (head_dim - 2)), head_dim)
