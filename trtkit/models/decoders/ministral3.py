"""Ministral 3: Mistral with queries scaled by the logarithm of their position."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part, sliding_windows
from trtkit.models.rope import query_scaling, rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Ministral3ForCausalLM"
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
GROWTH = ("llama_4_scaling_beta", "max_position_embeddings")


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("layer_types")
    attention = attention_part(config)
    rope = rope_spec(config, attention.head_dim, parameters=ROPE, ignored=GROWTH)
    attention = replace(attention, query_scaling=query_scaling(config, ROPE))
    layers = layers_part(config, attention, mlp_part(config), rope, sliding_windows(config))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
