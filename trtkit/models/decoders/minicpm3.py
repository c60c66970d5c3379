"""MiniCPM3: latent attention; factors of embeddings, residual sums and logits."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.latent_parts import LATENT_NAMES, latent_attention_part, latent_rope
from trtkit.models.names import llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.spec import BlockSpec, DecoderSpec, EmbeddingSpec

HF_CLASS = "MiniCPM3ForCausalLM"
DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "num_attention_heads": 40,
    "max_position_embeddings": 32768,
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
}


def spec(config: HfConfig) -> DecoderSpec:
    norm, attention = rms_norm_part(config), latent_attention_part(config, latent_rope(config, is_interleaved=False))
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, mlp, attention.rope)
    model = decoder_part(config, layers, norm, llama_names({}, LATENT_NAMES))
    root = len(layers) ** 0.5
    base = float(config.get("dim_model_base", float(model.hidden_size)))
    return replace(
        model,
        embedding=EmbeddingSpec(scale=float(config.get("scale_emb", 1.0))),
        block=BlockSpec(norm, residual_multiplier=float(config.get("scale_depth", root)) / root),
        head=replace(model.head, logit_scale=base / model.hidden_size),
    )
