"""EXAONE 4: norms after attention and MLP; in models with sliding layers, full ones have no rotary embedding."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import POST_NORMS, llama_names
from trtkit.models.parts import (
    attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    patterned_windows,
    rms_norm_part,
    sliding_ropes,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "Exaone4ForCausalLM"
DEFAULTS = {"num_key_value_heads": 32, "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4}


def spec(config: HfConfig) -> DecoderSpec:
    norm = rms_norm_part(config)
    attention = replace(attention_part(config), norm=norm, qk_norm="head")
    windows = patterned_windows(config)
    ropes = sliding_ropes(config, rope_spec(config, attention.head_dim), windows)
    layers = layers_part(config, attention, mlp_part(config), ropes, windows)
    model = decoder_part(config, layers, norm, llama_names({}, POST_NORMS))
    return replace(model, block=BlockSpec(norm, tuple(POST_NORMS)))
