"""Gemma 3, text: a norm on each query and key head, five sliding layers per full one."""

from dataclasses import replace

from trtkit.models.gemma_parts import normed_part
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import SANDWICH_NORMS
from trtkit.models.parts import (
    alternating_types,
    biased_attention_part,
    gemma_mlp_part,
    gemma_norm_part,
    layers_part,
    sliding_windows,
)
from trtkit.models.rope import ropes_by_layer_type
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Gemma3ForCausalLM"
ALIASES = {"sliding_window_pattern": "_sliding_window_pattern"}
# Published configs omit the defaults of HF's `Gemma3TextConfig`.
DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "tie_word_embeddings": True,
}


def spec(config: HfConfig) -> DecoderSpec:
    norm = gemma_norm_part(config)
    config.refuse("attn_logit_softcapping")  # transformers does not apply it
    scale = float(config.need("query_pre_attn_scalar")) ** -0.5
    attention = replace(biased_attention_part(config), scale=scale, norm=norm, qk_norm="head")
    types = alternating_types(config, int(config.need("sliding_window_pattern")))
    windows = sliding_windows(config, types)
    ropes = ropes_by_layer_type(config, attention.head_dim, types)
    layers = layers_part(config, attention, gemma_mlp_part(config), ropes, windows)
    return normed_part(config, layers, norm, SANDWICH_NORMS)
