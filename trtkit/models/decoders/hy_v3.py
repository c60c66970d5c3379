"""Hunyuan 3: a norm on each query and key head, experts with sigmoid routing, a shared expert."""

from dataclasses import replace

from trtkit.models.feed_forward import MoeSpec, RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part, with_dense_types
from trtkit.models.names import EXPERT_NAMES, llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "HYV3ForCausalLM"
DEFAULTS = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536,
    "num_experts": 192,
    "num_experts_per_tok": 8,
}
INSIDE = {
    **EXPERT_NAMES,
    "moe.router": "mlp.router.gate",
    "moe.choice_bias": "mlp.expert_bias",
    **{f"moe.shared.{name}": f"mlp.shared_mlp.{name}_proj" for name in ("gate", "up", "down")},
}


def spec(config: HfConfig) -> DecoderSpec:
    config.get("enable_moe_fp32_combine")  # affects rounding only
    norm, mlp = rms_norm_part(config), mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head")
    rope = rope_spec(config, attention.head_dim, theta=11158840.0)
    layers = layers_part(config, attention, _mixture(config, has_bias=mlp.has_bias), rope)
    model = decoder_part(config, with_dense_types(config, layers, mlp, 1), norm, llama_names({}, INSIDE))
    return replace(model, unused=(f"model.layers.{len(layers)}.",))  # multi-token prediction


def _mixture(config: HfConfig, *, has_bias: bool) -> MoeSpec:
    scale, top_k = float(config.get("router_scaling_factor", 2.826)), int(config.need("num_experts_per_tok"))
    routing = RoutingSpec(top_k, "sigmoid", choice_bias_axes=1, sum_epsilon=1e-20, scale=scale, is_fp32=True)
    expert = mlp_part(config, size="moe_intermediate_size")
    width = expert.intermediate_size * int(config.get("num_shared_experts", 1))
    shared = replace(expert, intermediate_size=width, has_bias=has_bias)
    return mixture_part(config, int(config.need("num_experts")), routing, expert, shared)
