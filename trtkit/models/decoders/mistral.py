"""Mistral 7B, Ministral 8B, and models with the same config."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part, sliding_windows
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = {"mistral": "MistralForCausalLM", "ministral": "MinistralForCausalLM"}
DEFAULTS = {"sliding_window": 4096, "num_key_value_heads": 8}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config)
    rope = rope_spec(config, attention.head_dim)
    layers = layers_part(config, attention, mlp_part(config), rope, sliding_windows(config))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
