"""Mellum 2: Qwen 3's attention, sliding layers, experts."""

from dataclasses import replace

from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part, with_dense_types
from trtkit.models.names import EXPERT_NAMES, llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    rms_norm_part,
    sliding_windows,
)
from trtkit.models.rope import parameters_by_type, whole_rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "MellumForCausalLM"
ALIASES = {"num_experts": "num_local_experts"}
DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": 1024,
    "moe_intermediate_size": 896,
    "num_experts": 64,
    "num_experts_per_tok": 8,
}
THETAS = {"full_attention": 500000.0, "sliding_attention": 10000.0}
ROPE = {kind: {"rope_theta": theta} for kind, theta in THETAS.items()}


def spec(config: HfConfig) -> DecoderSpec:
    for name in ("num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types", "max_window_layers"):
        config.get(name)
    for name in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
        config.refuse(name)
    norm, count = rms_norm_part(config), int(config.need("num_hidden_layers"))
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head")
    windows = sliding_windows(config, ["full_attention"] * count)
    types = config.get("layer_types", ["full_attention"] * count)
    parameters_by_type(config, types, ROPE)
    size = attention.head_dim
    kinds = {kind: whole_rope_spec(config, size, layer_type=kind, parameters=ROPE) for kind in dict.fromkeys(types)}
    routing = RoutingSpec(
        int(config.need("num_experts_per_tok")), norm_topk_prob=bool(config.get("norm_topk_prob", True))
    )
    expert = mlp_part(config, size="moe_intermediate_size")
    moe = mixture_part(config, int(config.need("num_experts")), routing, expert)
    layers = layers_part(config, attention, moe, [kinds[kind] for kind in types], windows)
    layers = with_dense_types(config, layers, mlp_part(config), 0)
    return replace(decoder_part(config, layers, norm, llama_names({}, EXPERT_NAMES)), unused=("mtp.",))
