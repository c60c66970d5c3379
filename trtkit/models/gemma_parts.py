"""What Gemma families share: soft caps, caches that later layers read, vectors of each layer's own, and their names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.feed_forward import PerLayerSpec
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
    from collections.abc import Mapping, Sequence

    from trtkit.models.attention import NormSpec
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec, LayerSpec

OUTSIDE = {
    "per_layer_table": "model.embed_tokens_per_layer",
    "per_layer_projection": "model.per_layer_model_projection",
    "per_layer_norm": "model.per_layer_projection_norm",
}
INSIDE = {
    **SANDWICH_NORMS,
    "per_layer.gate": "per_layer_input_gate",
    "per_layer.down": "per_layer_projection",
    "per_layer.norm": "post_per_layer_input_norm",
}


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
    return normed_part(config, layers, norm, norms)


def normed_part(
    config: HfConfig, layers: tuple[LayerSpec, ...], norm: NormSpec, norms: Mapping[str, str]
) -> DecoderSpec:
    """Return a model with scaled embeddings, capped logits and norms around its parts, by their checkpoint names."""
    model = decoder_part(config, layers, norm, llama_names({}, norms))
    return replace(
        model,
        block=BlockSpec(norm, tuple(norms)),
        head=replace(model.head, softcap=config.get("final_logit_softcapping")),
        embedding=EmbeddingSpec(scale=model.hidden_size**0.5),
    )


def cache_sources(config: HfConfig, types: Sequence[str]) -> list[int | None]:
    """Return for each layer the one whose cache it reads: the last of its type before those that share; None if own.

    Raises SourceError if there is none.
    """
    first = len(types) - int(config.get("num_kv_shared_layers", 0))
    if first < 1 or set(types[:first]) != set(types):
        what = f"`num_kv_shared_layers` leaves {max(first, 0)} layers with caches, which lack a type that others read"
        raise SourceError(what, config.where)
    last = {kind: index for index, kind in enumerate(types[:first])}
    return [None if index < first else last[kind] for index, kind in enumerate(types)]


def unused_weights(sources: Sequence[int | None]) -> tuple[str, ...]:
    """Return how the names of keys' and values' weights begin that checkpoints hold of layers that read others'."""
    return tuple(
        f"model.layers.{index}.self_attn.{name}."
        for index, source in enumerate(sources)
        for name in ("k_proj", "v_proj", "k_norm", "v_norm")
        if source is not None
    )


def per_layer_spec(config: HfConfig) -> PerLayerSpec | None:
    """Return the vectors of each layer's own; None if their size is 0."""
    size, layers = int(config.get("hidden_size_per_layer_input", 256)), int(config.need("num_hidden_layers"))
    rows = int(config.get("vocab_size_per_layer_input", 262144))
    activation = str(config.get("hidden_activation", "gelu_pytorch_tanh"))
    return PerLayerSpec(size, rows, layers, activation) if size else None
