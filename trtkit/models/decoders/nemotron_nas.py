"""Nemotron-NAS: Llama pruned layer by layer: fewer key/value heads, narrower MLPs, or parts removed."""

from dataclasses import replace

from trtkit.models.feed_forward import MlpSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, rms_norm_part
from trtkit.models.pruned_layers import pruned_layers
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "DeciLMForCausalLM"


def spec(config: HfConfig) -> DecoderSpec:
    attention = biased_attention_part(config)
    attention = replace(attention, rope=rope_spec(config, attention.head_dim))
    config.get("intermediate_size")  # each layer states its own
    mlp = MlpSpec(0, str(config.get("hidden_act", "silu")), has_bias=bool(config.get("mlp_bias", False)))
    layers = pruned_layers(config, attention, mlp)
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
