"""ERNIE 4.5 mixtures: routing with a selection bias, shared experts, some dense layers."""

from dataclasses import replace

from trtkit.models.feed_forward import MoeSpec, RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Ernie4_5_MoeForCausalLM"
ALIASES = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"}
DEFAULTS = {"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
INSIDE = {
    **SHARED_EXPERT_NAMES,
    "moe.choice_bias": "mlp.moe_statics.e_score_correction_bias",
}


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("moe_gate", "topk")
    for name in ("moe_capacity", "moe_use_aux_free", "num_nextn_predict_layers"):
        config.get(name)
    has_bias = bool(config.get("use_bias", False))
    attention = attention_part(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    rope = rope_spec(config, attention.head_dim, theta=500000.0, is_interleaved=True)
    layers = layers_part(config, attention, mlp_part(config, has_bias=has_bias), rope)
    first, last = int(config.get("moe_layer_start_index", 1)), int(config.get("moe_layer_end_index", -1))
    chosen = range(first, len(layers) if last == -1 else last + 1)
    moe, step = _mixture(config, has_bias=has_bias), int(config.get("moe_layer_interval", 1))
    layers = tuple(
        replace(layer, feed_forward=moe) if index in chosen and (index + 1) % step == 0 else layer
        for index, layer in enumerate(layers)
    )
    model = decoder_part(config, layers, rms_norm_part(config), llama_names({}, INSIDE))
    return replace(model, head=replace(model.head, has_bias=has_bias))


def _mixture(config: HfConfig, *, has_bias: bool) -> MoeSpec:
    count, top_k = int(config.get("num_experts", 64)), int(config.get("num_experts_per_tok", 6))
    expert = mlp_part(config, size="moe_intermediate_size")
    width = expert.intermediate_size * int(config.get("moe_num_shared_experts", 2))
    shared = replace(expert, intermediate_size=width, has_bias=has_bias) if width else None
    routing = RoutingSpec(top_k, choice_bias_axes=2, min_sum=float(config.get("moe_norm_min", 1e-12)), is_fp32=True)
    return mixture_part(config, count, routing, expert, shared)
