"""MiniMax-M2: experts with sigmoid routing, a norm over all query heads and one over all key heads."""

from dataclasses import replace

from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import MIXTRAL_EXPERT_NAMES, llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "MiniMaxM2ForCausalLM"
ALIASES = {"num_experts": "num_local_experts"}
DEFAULTS = {"num_key_value_heads": 8, "head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8}
INSIDE = {**MIXTRAL_EXPERT_NAMES, "moe.choice_bias": "block_sparse_moe.e_score_correction_bias"}
FIXED = {
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
}


def spec(config: HfConfig) -> DecoderSpec:
    for name, value in FIXED.items():
        config.refuse(name, value)
    for name in ("use_mtp", "num_mtp_modules", "mtp_transformer_layers"):  # multi-token prediction
        config.get(name)
    count = int(config.need("num_hidden_layers"))
    config.refuse("attn_type_list", [1] * count)
    norm = rms_norm_part(config)
    attention = replace(attention_part(config), norm=norm, qk_norm="all")
    turned = int(config.get("rotary_dim", attention.head_dim))
    rope = rope_spec(config, attention.head_dim, theta=5e6, partial=turned / attention.head_dim)
    routing = RoutingSpec(int(config.need("num_experts_per_tok")), "sigmoid", choice_bias_axes=1)
    moe = mixture_part(config, int(config.need("num_experts")), routing, mlp_part(config))
    layers = layers_part(config, attention, moe, rope)
    return decoder_part(config, layers, norm, llama_names({}, INSIDE))
