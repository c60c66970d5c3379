"""Granite 3: Llama with factors of embeddings, scores, residual sums and logits."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
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

HF_CLASS = "GraniteForCausalLM"


def spec(config: HfConfig) -> DecoderSpec:
    norm = rms_norm_part(config)
    attention = biased_attention_part(config)
    attention = replace(attention, scale=float(config.get("attention_multiplier", 1.0)))
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    return granite_scaled(config, decoder_part(config, layers, norm, llama_names()))
