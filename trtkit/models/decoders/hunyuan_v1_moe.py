"""Hunyuan's mixtures: a shared expert, and a number of routed experts per token that may differ by layer."""

from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.family_parts import HUNYUAN_NAMES, hunyuan_attention, hunyuan_rope
from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import EXPERT_NAMES, llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "HunYuanMoEV1ForCausalLM"
DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "num_experts": 1}
INSIDE = {
    **HUNYUAN_NAMES,
    **EXPERT_NAMES,
    "moe.router": "mlp.gate.wg",
    **{f"moe.shared.{name}": f"mlp.shared_mlp.{name}_proj" for name in ("gate", "up", "down")},
}
# Fields of published configs that transformers does not read: it always computes these values.
FIXED = {"use_mixed_mlp_moe": True, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "use_mla": False}
IMMATERIAL = ("capacity_factor", "moe_drop_tokens", "moe_random_routing_dropped_token")


def spec(config: HfConfig) -> DecoderSpec:
    count, expert, attention = int(config.need("num_hidden_layers")), mlp_part(config), hunyuan_attention(config)
    for name, value in FIXED.items():
        config.refuse(name, value)
    config.refuse("num_shared_expert", 1, [1] * count)
    config.refuse("moe_intermediate_size", expert.intermediate_size, [expert.intermediate_size] * count)
    for name in IMMATERIAL:
        config.get(name)
    chosen = config.get("moe_topk") or 1
    chosen = chosen if isinstance(chosen, list) else [chosen] * count
    if len(chosen) < count:
        raise SourceError(f"`moe_topk` has {len(chosen)} entries for {count} layers", config.where)
    experts = int(config.need("num_experts"))
    mixtures = [
        mixture_part(config, experts, RoutingSpec(int(k), is_fp32=True), expert, expert) for k in chosen[:count]
    ]
    layers = layers_part(config, attention, mixtures[0], hunyuan_rope(config, attention.head_dim))
    layers = tuple(replace(layer, feed_forward=moe) for layer, moe in zip(layers, mixtures, strict=True))
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, INSIDE))
