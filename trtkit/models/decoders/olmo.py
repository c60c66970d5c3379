"""OLMo: Llama with layer norms without weights, and clamped queries, keys and values."""

from dataclasses import replace

from trtkit.models.attention import NormSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "OlmoForCausalLM"


def spec(config: HfConfig) -> DecoderSpec:
    clip = config.get("clip_qkv")
    attention = replace(biased_attention_part(config), qkv_clip=None if clip is None else float(clip))
    layers = layers_part(config, attention, mlp_part(config), rope_spec(config, attention.head_dim))
    return decoder_part(config, layers, NormSpec("layer", 1e-5, has_weight=False), llama_names())
