"""DeepSeek-V3 and R1: latent attention, grouped experts with sigmoid routing."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.latent_parts import LATENT_NAMES, latent_attention_part, latent_rope
from trtkit.models.mixtures import grouped_mixture, later_token_layers, with_first_dense
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "DeepseekV3ForCausalLM"
ALIASES = {"num_experts": "n_routed_experts"}
DEFAULTS = {
    "max_position_embeddings": 4096,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": 2.5,
}


def spec(config: HfConfig) -> DecoderSpec:
    is_interleaved = bool(config.get("rope_interleave", True))
    attention = latent_attention_part(config, latent_rope(config, is_interleaved=is_interleaved))
    moe = grouped_mixture(config, mlp_part(config, size="moe_intermediate_size"))
    layers = with_first_dense(config, layers_part(config, attention, moe, attention.rope), mlp_part(config))
    names = llama_names({}, {**LATENT_NAMES, **SHARED_EXPERT_NAMES})
    return replace(decoder_part(config, layers, rms_norm_part(config), names), unused=later_token_layers(config))
