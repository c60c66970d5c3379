"""A.X K1: DeepSeek-V3 with a norm on the mixtures' output."""

from dataclasses import replace

from trtkit.models.feed_forward import MlpSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.latent_parts import LATENT_NAMES, latent_attention_part, latent_rope
from trtkit.models.mixtures import grouped_mixture, later_token_layers, with_dense_types
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "AXK1ForCausalLM"
ALIASES = {"num_experts": "n_routed_experts"}
DEFAULTS = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 192,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": 2.5,
}
NORM = "mlp.post_mlp_layernorm"


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes. Checkpoints hold a norm for dense layers, too, which is unused."""
    config.need("q_lora_rank")
    norm, is_interleaved = rms_norm_part(config), bool(config.get("rope_interleave", True))
    attention = latent_attention_part(config, latent_rope(config, is_interleaved=is_interleaved))
    moe = replace(grouped_mixture(config, mlp_part(config, size="moe_intermediate_size")), norm=norm)
    first, layers = int(config.get("first_k_dense_replace", 1)), layers_part(config, attention, moe, attention.rope)
    layers = with_dense_types(config, layers, mlp_part(config), first)
    names = llama_names({}, {**LATENT_NAMES, **SHARED_EXPERT_NAMES, "moe.norm": NORM})
    dense = [index for index, layer in enumerate(layers) if isinstance(layer.feed_forward, MlpSpec)]
    unused = (*later_token_layers(config), *(f"model.layers.{index}.{NORM}" for index in dense))
    return replace(decoder_part(config, layers, norm, names), unused=unused)
