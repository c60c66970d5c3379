"""Arcee AFM: Llama with an ungated MLP and squared ReLU."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, plain_mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "ArceeForCausalLM"
DEFAULTS = {"hidden_act": "relu2", "rms_norm_eps": 1e-5}


def spec(config: HfConfig) -> DecoderSpec:
    attention = biased_attention_part(config)
    mlp = plain_mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
