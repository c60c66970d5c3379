"""MiMo: Qwen 2, with modules that predict later tokens."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, late_windows, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "MiMoForCausalLM"
DEFAULTS = {"sliding_window": 4096, "num_key_value_heads": 32}


def spec(config: HfConfig) -> DecoderSpec:
    config.get("num_nextn_predict_layers")
    config.refuse("attention_bias", True)
    attention = attention_part(config, has_qkv_bias=True)
    rope = rope_spec(config, attention.head_dim)
    layers = layers_part(config, attention, mlp_part(config), rope, late_windows(config))
    return replace(decoder_part(config, layers, rms_norm_part(config), llama_names()), unused=("model.mtp_layers.",))
