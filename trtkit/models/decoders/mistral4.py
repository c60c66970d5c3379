"""Mistral Small 4: latent attention with queries scaled by position, experts."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.latent_parts import LATENT_NAMES, scaled_latent_part
from trtkit.models.mixtures import grouped_mixture, with_first_dense
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Mistral4ForCausalLM"
ALIASES = {"num_experts": "n_routed_experts"}
DEFAULTS = {
    "max_position_embeddings": 1048576,
    "num_key_value_heads": 32,
    "kv_lora_rank": 256,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 2048,
}
ROPE = {
    "type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def spec(config: HfConfig) -> DecoderSpec:
    attention = scaled_latent_part(config, ROPE)
    moe = grouped_mixture(config, mlp_part(config, size="moe_intermediate_size"))
    routing = replace(moe.routing, scores="softmax", choice_bias_axes=0, is_fp32=False)
    layers = layers_part(config, attention, replace(moe, routing=routing), attention.rope)
    layers = with_first_dense(config, layers, mlp_part(config))
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, {**LATENT_NAMES, **SHARED_EXPERT_NAMES}))
