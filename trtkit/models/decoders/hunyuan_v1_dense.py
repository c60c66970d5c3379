"""Hunyuan's dense models: a norm on each query and key head, after the rotary embedding."""

from trtkit.models.family_parts import HUNYUAN_NAMES, hunyuan_attention, hunyuan_rope
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "HunYuanDenseV1ForCausalLM"
DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}


def spec(config: HfConfig) -> DecoderSpec:
    attention = hunyuan_attention(config)
    layers = layers_part(config, attention, mlp_part(config), hunyuan_rope(config, attention.head_dim))
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, HUNYUAN_NAMES))
