"""Granite's mixtures of experts, with or without a shared expert."""

from dataclasses import replace

from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import GRANITE_EXPERT_NAMES, llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    granite_scaled,
    layers_part,
    mlp_part,
    rms_norm_part,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = {"granitemoe": "GraniteMoeForCausalLM", "granitemoeshared": "GraniteMoeSharedForCausalLM"}


def spec(config: HfConfig) -> DecoderSpec:
    attention, expert = biased_attention_part(config), mlp_part(config)
    width = int(config.get("shared_intermediate_size", 0))
    shared = replace(expert, intermediate_size=width, is_fused=True) if width else None
    count, top_k = int(config.get("num_local_experts", 8)), int(config.get("num_experts_per_tok", 2))
    moe = mixture_part(config, count, RoutingSpec(top_k), expert, shared)
    attention = replace(attention, scale=float(config.get("attention_multiplier", 1.0)))
    layers = layers_part(config, attention, moe, rope_spec(config, attention.head_dim))
    names = llama_names({}, GRANITE_EXPERT_NAMES)
    return granite_scaled(config, decoder_part(config, layers, rms_norm_part(config), names))
