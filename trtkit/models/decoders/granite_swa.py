"""Granite with sliding layers, attention sinks, and a rotary theta per layer."""

from trtkit.models.family_parts import GRANITE_SINKS, sliding_granite_layers
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import decoder_part, granite_scaled, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "GraniteSWAForCausalLM"
DEFAULTS = {
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "sliding_window": 128,
    "tie_word_embeddings": True,
}


def spec(config: HfConfig) -> DecoderSpec:
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = sliding_granite_layers(config, mlp)
    return granite_scaled(config, decoder_part(config, layers, rms_norm_part(config), llama_names({}, GRANITE_SINKS)))
