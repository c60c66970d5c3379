"""Gemma 4, text: two head sizes, shared caches, per-layer embeddings, optional experts."""

from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.gemma_parts import (
    EXPERT_NAMES,
    INSIDE,
    OUTSIDE,
    gemma4_attentions,
    gemma4_feed_forward,
    per_layer_spec,
    unused_weights,
)
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import SANDWICH_NORMS, llama_names
from trtkit.models.parts import decoder_part, gemma_mlp_part, rms_norm_part
from trtkit.models.spec import BlockSpec, DecoderSpec, EmbeddingSpec, LayerSpec

HF_CLASS = "Gemma4ForCausalLM"
DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "global_head_dim": 512,
}


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes. Raises SourceError for bidirectional attention to text."""
    config.refuse("use_bidirectional_attention", "vision")  # applies to images only
    norm, mlp, attentions = rms_norm_part(config), gemma_mlp_part(config), gemma4_attentions(config)
    factor = 2 if config.get("use_double_wide_mlp", False) else 1
    wide = replace(mlp, intermediate_size=mlp.intermediate_size * factor)
    model = decoder_part(
        config,
        tuple(
            LayerSpec(attention, gemma4_feed_forward(config, mlp if attention.cache_of is None else wide, norm))
            for attention in attentions
        ),
        norm,
        llama_names(OUTSIDE, {**INSIDE, **EXPERT_NAMES, "scalar": "layer_scalar"}),
    )
    per_layer = per_layer_spec(config)
    if per_layer is not None and per_layer.vocab_size < model.vocab_size:
        what = f"`vocab_size_per_layer_input` is {per_layer.vocab_size}, less than the vocabulary of {model.vocab_size}"
        raise SourceError(what, config.where)
    return replace(
        model,
        block=BlockSpec(norm, tuple(SANDWICH_NORMS), per_layer=per_layer, has_scalar=True),
        head=replace(model.head, softcap=config.get("final_logit_softcapping")),
        embedding=EmbeddingSpec(scale=model.hidden_size**0.5),
        unused=unused_weights([attention.cache_of for attention in attentions]),
    )
