"""Hunyuan's dense models: a norm on each query and key head after its rotation. HF: `HunYuanDenseV1ForCausalLM`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import RopeSpec

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec

DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
INSIDE = {"attention.q_norm": "self_attn.query_layernorm", "attention.k_norm": "self_attn.key_layernorm"}
# Fields of published files that `HunYuanDenseV1Config` does not have: what they switch is always so, or has no effect.
FIXED = {"use_qk_norm": True, "use_cla": False, "norm_type": "rms", "mlp_bias": False, "use_rotary_pos_emb": True}
IMMATERIAL = ("eod_token_id", "cla_share_factor", "org_vocab_size", "class_num", "dense_list", "pool_type")


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes."""
    norm, attention = rms_norm_part(config), biased_attention_part(config)
    for name, value in (*FIXED.items(), ("attention_head_dim", attention.head_dim)):
        config.refuse(name, value)
    for name in IMMATERIAL:
        config.get(name)
    attention = replace(attention, norm=norm, qk_norm="head", is_rotated_first=True)
    layers = layers_part(config, attention, mlp_part(config), _rope(config, attention.head_dim))
    return decoder_part(config, layers, norm, llama_names({}, INSIDE))


def _rope(config: HfConfig, head_dim: int) -> RopeSpec:
    """Return the rotary embedding. `dynamic` with a fixed `alpha` only stretches the base, at every length."""
    stated = {**config.get("rope_scaling", {}), **config.get("rope_parameters", {})}
    kind = stated.get("rope_type", stated.get("type"))
    if kind != "dynamic" or not stated.get("alpha"):
        return rope_spec(config, head_dim)
    theta = float(stated.get("rope_theta", config.get("rope_theta", 10000.0)))
    return RopeSpec(theta * float(stated["alpha"]) ** (head_dim / (head_dim - 2)), head_dim)
