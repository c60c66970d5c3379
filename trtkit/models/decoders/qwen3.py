"""Qwen 3: Llama with a norm on each query and key head."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, late_windows, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Qwen3ForCausalLM"
DEFAULTS = {"head_dim": 128, "sliding_window": 4096, "num_key_value_heads": 32}


def spec(config: HfConfig) -> DecoderSpec:
    norm = rms_norm_part(config)
    attention = biased_attention_part(config)
    attention = replace(attention, norm=norm, qk_norm="head")
    rope = rope_spec(config, attention.head_dim)
    layers = layers_part(config, attention, mlp_part(config), rope, late_windows(config))
    return decoder_part(config, layers, norm, llama_names())
