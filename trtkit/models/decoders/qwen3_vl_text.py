"""The language model of Qwen3-VL: Qwen 3 with interleaved M-RoPE."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    optional_windows,
    rms_norm_part,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Qwen3VLTextModel"
DEFAULTS = {"head_dim": 128, "max_position_embeddings": 128000, "num_key_value_heads": 32}
SECTIONS = (24, 20, 20)


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("use_sliding_window", False)
    norm = rms_norm_part(config)
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head")
    # Sections are always interleaved, whatever the config states.
    names = ("mrope_interleaved",)
    rope = rope_spec(config, attention.head_dim, theta=500000.0, default_sections=SECTIONS, ignored=names)
    layers = layers_part(config, attention, mlp_part(config), rope, optional_windows(config))
    return decoder_part(config, layers, norm, llama_names())
