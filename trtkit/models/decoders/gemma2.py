"""Gemma 2: soft-capped scores and logits, every other layer slides. HF: `Gemma2ForCausalLM`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.models.names import SANDWICH_NORMS, llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    gemma_mlp_part,
    gemma_norm_part,
    layers_part,
    sliding_windows,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, EmbeddingSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec

DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes."""
    return soft_capped_part(config, SANDWICH_NORMS)


def soft_capped_part(config: HfConfig, norms: Mapping[str, str]) -> DecoderSpec:
    """Return Gemma 2 or VaultGemma, whose layers have these norms, by their names in checkpoints."""
    norm = gemma_norm_part(config)
    attention = replace(
        biased_attention_part(config),
        scale=float(config.need("query_pre_attn_scalar")) ** -0.5,
        softcap=config.get("attn_logit_softcapping"),
    )
    count = int(config.need("num_hidden_layers"))
    types = ["full_attention" if index % 2 else "sliding_attention" for index in range(count)]
    rope, windows = rope_spec(config, attention.head_dim), sliding_windows(config, types)
    layers = layers_part(config, attention, gemma_mlp_part(config), rope, windows)
    model = decoder_part(config, layers, norm, llama_names({}, norms))
    return replace(
        model,
        block=BlockSpec(norm, tuple(norms)),
        head=replace(model.head, softcap=config.get("final_logit_softcapping")),
        embedding=EmbeddingSpec(scale=model.hidden_size**0.5),
    )
