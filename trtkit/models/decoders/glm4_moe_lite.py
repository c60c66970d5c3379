"""GLM-4.7-Flash: latent attention, experts with sigmoid routing."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.latent_parts import LATENT_NAMES, latent_attention_part
from trtkit.models.mixtures import grouped_mixture, later_token_layers, with_dense_types
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Glm4MoeLiteForCausalLM"
ALIASES = {"num_experts": "n_routed_experts"}
DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 202752,
    "kv_lora_rank": 512,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "num_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "routed_scaling_factor": 1.8,
}


def spec(config: HfConfig) -> DecoderSpec:
    size, is_interleaved = int(config.need("qk_rope_head_dim")), bool(config.get("rope_interleave", True))
    attention = latent_attention_part(config, rope_spec(config, size, is_interleaved=is_interleaved, partial=1.0))
    moe = grouped_mixture(config, mlp_part(config, size="moe_intermediate_size"))
    layers = with_dense_types(config, layers_part(config, attention, moe, attention.rope), mlp_part(config), 1)
    names = llama_names({}, {**LATENT_NAMES, **SHARED_EXPERT_NAMES})
    return replace(decoder_part(config, layers, rms_norm_part(config), names), unused=later_token_layers(config))
