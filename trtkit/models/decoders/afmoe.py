"""Arcee Trinity: gated attention, rotary in sliding layers only; norms before and after each part; experts."""

from dataclasses import replace

from trtkit.models.family_parts import TRINITY_NAMES, trinity_attentions, trinity_mixture
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import decoder_part, mlp_part, rms_norm_part
from trtkit.models.spec import BlockSpec, DecoderSpec, EmbeddingSpec, LayerSpec

HF_CLASS = "AfmoeForCausalLM"
DEFAULTS = {
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 16384,
    "moe_intermediate_size": 1408,
    "sliding_window": 1024,
}
NORMS = ("attention_norm", "post_attention_norm", "mlp_norm", "post_mlp_norm")


def spec(config: HfConfig) -> DecoderSpec:
    norm, mlp, moe = rms_norm_part(config), mlp_part(config), trinity_mixture(config)
    dense = int(config.get("num_dense_layers", 1))
    attentions = trinity_attentions(config, norm)
    layers = tuple(LayerSpec(attention, mlp if index < dense else moe) for index, attention in enumerate(attentions))
    model = decoder_part(config, layers, norm, llama_names({}, TRINITY_NAMES))
    scale = model.hidden_size**0.5 if config.get("mup_enabled", False) else 1.0
    return replace(model, block=BlockSpec(norm, NORMS), embedding=EmbeddingSpec(scale=scale))
