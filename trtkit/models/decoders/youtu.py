"""Youtu-LLM: Llama with latent attention."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.latent_parts import LATENT_NAMES, latent_attention_part, latent_rope
from trtkit.models.names import llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "YoutuForCausalLM"
DEFAULTS = {
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def spec(config: HfConfig) -> DecoderSpec:
    config.get("embedding_initializer_range")
    attention = latent_attention_part(
        config, latent_rope(config, is_interleaved=bool(config.get("rope_interleave", True)))
    )
    layers = layers_part(config, attention, mlp_part(config), attention.rope)
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, LATENT_NAMES))
