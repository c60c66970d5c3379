"""Jais 2: layer norms, ungated MLPs with squared ReLU."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Jais2ForCausalLM"
DEFAULTS = {"hidden_act": "relu2", "attention_bias": True, "mlp_bias": True}


def spec(config: HfConfig) -> DecoderSpec:
    attention = biased_attention_part(config)
    mlp = plain_mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    return decoder_part(config, layers, layer_norm_part(config), llama_names())
