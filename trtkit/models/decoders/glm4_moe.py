"""GLM-4.5: experts with sigmoid routing, shared experts, dense first layers."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import grouped_mixture, later_token_layers, with_first_dense
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Glm4MoeForCausalLM"
ALIASES = {"num_experts": "n_routed_experts"}
DEFAULTS = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


def spec(config: HfConfig) -> DecoderSpec:
    norm = rms_norm_part(config)
    attention = attention_part(config, has_qkv_bias=bool(config.get("attention_bias", False)))
    if config.get("use_qk_norm", False):
        attention = replace(attention, norm=norm, qk_norm="head")
    moe = grouped_mixture(config, mlp_part(config, size="moe_intermediate_size"))
    layers = layers_part(config, attention, moe, rope_spec(config, attention.head_dim, partial=0.5))
    layers = with_first_dense(config, layers, mlp_part(config))
    model = decoder_part(config, layers, norm, llama_names({}, SHARED_EXPERT_NAMES))
    return replace(model, unused=later_token_layers(config))
