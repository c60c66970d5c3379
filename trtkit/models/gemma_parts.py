"""What Gemma 3n and 4 share: caches that later layers read, vectors of each layer's own, and their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.names import SANDWICH_NORMS
from trtkit.models.per_layer import PerLayerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.models.hf_config import HfConfig

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
