"""OLMo 2: norms after attention and MLP instead of before; a norm over all query heads and one over all key heads."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import POST_NORMS, llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "Olmo2ForCausalLM"
DEFAULTS = {"rms_norm_eps": 1e-5}


def spec(config: HfConfig) -> DecoderSpec:
    norm = rms_norm_part(config)
    attention = biased_attention_part(config)
    attention = replace(attention, norm=norm, qk_norm="all")
    layers = layers_part(config, attention, mlp_part(config), rope_spec(config, attention.head_dim))
    model = decoder_part(config, layers, norm, llama_names({}, POST_NORMS))
    return replace(model, block=BlockSpec(norm, tuple(POST_NORMS)))
