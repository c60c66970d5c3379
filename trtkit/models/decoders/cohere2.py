"""Command R7B and Command A: Command R with sliding layers, which alone have a rotary embedding."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import (
    alternating_types,
    biased_attention_part,
    decoder_part,
    layer_norm_part,
    layers_part,
    mlp_part,
    sliding_windows,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "Cohere2ForCausalLM"
DEFAULTS = {"sliding_window": 4096, "tie_word_embeddings": True}
# Fields of published configs that transformers does not read: it always computes these values.
FIXED = {
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
}


def spec(config: HfConfig) -> DecoderSpec:
    for name, supported in FIXED.items():
        config.refuse(name, supported)
    config.get("use_parallel_embedding")  # how training distributed the embedding
    norm, attention = layer_norm_part(config, has_bias=False), biased_attention_part(config)
    rope = rope_spec(config, attention.head_dim, is_interleaved=True)
    every = int(config.get("sliding_window_pattern", 4))
    config.refuse("layer_switch", every)
    config.need("sliding_window")
    windows = sliding_windows(config, alternating_types(config, every))
    layers = layers_part(config, attention, mlp_part(config), [rope if window else None for window in windows], windows)
    model = decoder_part(config, layers, norm, llama_names())
    return replace(
        model,
        block=BlockSpec(norm, ("attention_norm",), is_parallel=True),
        head=replace(model.head, logit_scale=float(config.get("logit_scale", 0.0625))),
    )
