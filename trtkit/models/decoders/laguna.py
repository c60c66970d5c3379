"""Laguna: a number of heads per layer, attention gated by softplus, experts."""

from trtkit.models.family_parts import LAGUNA_NAMES, laguna_attentions, laguna_mixture
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import with_dense_types
from trtkit.models.names import llama_names
from trtkit.models.parts import decoder_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec, LayerSpec

HF_CLASS = "LagunaForCausalLM"
DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "sliding_window": 512,
}


def spec(config: HfConfig) -> DecoderSpec:
    norm, moe = rms_norm_part(config), laguna_mixture(config)
    layers = tuple(LayerSpec(attention, moe) for attention in laguna_attentions(config, norm))
    layers = with_dense_types(config, layers, mlp_part(config), 1)
    return decoder_part(config, layers, norm, llama_names({}, LAGUNA_NAMES))
