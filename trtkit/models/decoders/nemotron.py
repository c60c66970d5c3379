"""Nemotron 3 and 4, Minitron: ungated MLPs, layer norms stored as weight - 1."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "NemotronForCausalLM"
ALIASES = {"layer_norm_eps": "norm_eps"}
DEFAULTS = {"hidden_act": "relu2"}


def spec(config: HfConfig) -> DecoderSpec:
    norm = replace(layer_norm_part(config), weight_offset=1.0)
    attention = biased_attention_part(config)
    mlp = plain_mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim, partial=0.5))
    return decoder_part(config, layers, norm, llama_names())
