"""MiMo-V2-Flash: values smaller than keys, attention sinks in sliding layers, experts."""

from dataclasses import replace

from trtkit.models.family_parts import mimo_attentions
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import grouped_routing, mixture_part, with_dense_types
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import decoder_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec, LayerSpec

HF_CLASS = "MiMoV2FlashForCausalLM"
ALIASES = {"num_experts": "n_routed_experts"}
DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "sliding_window": 129,
    "attention_value_scale": 0.707,
    "moe_intermediate_size": 2048,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}


def spec(config: HfConfig) -> DecoderSpec:
    expert, norm = mlp_part(config, size="moe_intermediate_size"), rms_norm_part(config)
    moe = mixture_part(config, int(config.need("num_experts")), grouped_routing(config), expert)
    layers = tuple(LayerSpec(attention, moe) for attention in mimo_attentions(config))
    layers = with_dense_types(config, layers, mlp_part(config), 1)
    config.refuse("moe_layer_freq", [int(layer.feed_forward is moe) for layer in layers])
    config.refuse("layernorm_epsilon", norm.eps)  # transformers does not read it
    config.refuse("n_shared_experts", 0)
    names = llama_names({}, {**SHARED_EXPERT_NAMES, "attention.sinks": "self_attn.sinks"})
    return replace(decoder_part(config, layers, norm, names), unused=("model.mtp.",))
