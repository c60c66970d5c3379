"""Seed-OSS: Llama with biases on queries, keys and values."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "SeedOssForCausalLM"
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 8}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(
        config,
        has_qkv_bias=bool(config.get("attention_bias", True)),
        has_output_bias=bool(config.get("attention_out_bias", False)),
    )
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
