"""OLMo 3: OLMo 2 with sliding layers, which have their own rotary embedding."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import POST_NORMS, llama_names
from trtkit.models.parts import (
    alternating_types,
    biased_attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    rms_norm_part,
    sliding_windows,
)
from trtkit.models.rope import ropes_by_layer_type
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "Olmo3ForCausalLM"
DEFAULTS = {"rms_norm_eps": 1e-5, "sliding_window": 4096}


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("rope_local_base_freq")  # transformers does not read it
    norm = rms_norm_part(config)
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="all")
    types = alternating_types(config, 4)
    windows = sliding_windows(config, types)
    ropes = ropes_by_layer_type(config, attention.head_dim, types, theta=500000.0)
    layers = layers_part(config, attention, mlp_part(config), ropes, windows)
    model = decoder_part(config, layers, norm, llama_names({}, POST_NORMS))
    return replace(model, block=BlockSpec(norm, tuple(POST_NORMS)))
