"""Gemma 3n's layers, which differ in window, cache, intermediate size and sparsity, and their names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.feed_forward import MlpSpec
from trtkit.models.gemma_parts import cache_sources
from trtkit.models.parts import alternating_types, biased_attention_part, rms_norm_part, sliding_windows
from trtkit.models.rope import ropes_by_layer_type
from trtkit.models.spec import LayerSpec

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig

STREAMS = {
    f"streams.{ours}.{{i}}": f"model.altup_{prefix}projections.{{i}}"
    for ours, prefix in (("in", ""), ("out", "unembed_"))
}
NAMES = {
    "streams.router": "altup.modality_router",
    "streams.router_norm": "altup.router_norm",
    "streams.predict": "altup.prediction_coefs",
    "streams.correct": "altup.correction_coefs",
    "streams.scale": "altup.correct_output_scale",
    "laurel.left": "laurel.linear_left",
    "laurel.right": "laurel.linear_right",
    "laurel.norm": "laurel.post_laurel_norm",
}
"""Names inside of layers, besides those of `gemma_parts`."""
_SPARSE_LAYERS, _SPARSITY = 10, 0.95


def layers_of(config: HfConfig) -> tuple[LayerSpec, ...]:
    """Return the layers. Raises SourceError for lists of other lengths."""
    types = list(config.get("layer_types", alternating_types(config, 5)))
    norm = rms_norm_part(config)
    usual = replace(
        biased_attention_part(config),
        scale=1.0,
        norm=norm,
        qk_norm="head",
        value_norm=replace(norm, has_weight=False),
    )
    windows, ropes = sliding_windows(config, types), ropes_by_layer_type(config, usual.head_dim, types)
    return tuple(
        LayerSpec(replace(usual, rope=rope, sliding_window=window, cache_of=source), mlp)
        for rope, window, source, mlp in zip(ropes, windows, cache_sources(config, types), _mlps(config), strict=True)
    )


def _mlps(config: HfConfig) -> list[MlpSpec]:
    count, sizes = int(config.need("num_hidden_layers")), config.need("intermediate_size")
    sizes = sizes if isinstance(sizes, list) else [sizes] * count
    first = _SPARSE_LAYERS if count > _SPARSE_LAYERS else 0
    usual = [_SPARSITY if index < first else 0.0 for index in range(count)]
    sparsities = config.get("activation_sparsity_pattern", usual)
    for name, values in (("intermediate_size", sizes), ("activation_sparsity_pattern", sparsities)):
        if len(values) != count:
            raise SourceError(f"`{name}` has {len(values)} entries for {count} layers", config.where)
    activation = str(config.get("hidden_activation", "gelu_pytorch_tanh"))
    return [
        MlpSpec(int(size), activation, sparsity=float(sparsity))
        for size, sparsity in zip(sizes, sparsities, strict=True)
    ]
