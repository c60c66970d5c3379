"""Llama 2 and 3, and models with the same config (SmolLM 1 and 2, TinyLlama, Yi)."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "LlamaForCausalLM"


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("rope_interleaved", False)
    attention = biased_attention_part(config)
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
