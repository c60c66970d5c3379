"""Helium: Llama with interleaved rotary pairs."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "HeliumForCausalLM"
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 20, "rms_norm_eps": 1e-8}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config, has_qkv_bias=bool(config.get("attention_bias", False)))
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    rope = rope_spec(config, attention.head_dim, theta=100000.0, is_interleaved=True)
    layers = layers_part(config, attention, mlp, rope)
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
