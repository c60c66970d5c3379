"""Parts of a spec as most configs state them. Families change what differs with `dataclasses.replace`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.models.spec import (
    AttentionSpec,
    BlockSpec,
    DecoderSpec,
    HeadSpec,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    RopeSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.models.hf_config import HfConfig

Window = int | None


def attention_part(config: HfConfig, *, has_qkv_bias: bool = False, has_output_bias: bool = False) -> AttentionSpec:
    """Return attention with `num_key_value_heads` and `head_dim` as stated, scores over the root of head_dim."""
    heads = int(config.need("num_attention_heads"))
    head_dim = int(config.get("head_dim", int(config.need("hidden_size")) // heads))
    kv_heads = int(config.get("num_key_value_heads", heads))
    spec = AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5)
    return replace(spec, has_qkv_bias=has_qkv_bias, has_output_bias=has_output_bias)


def mlp_part(config: HfConfig, *, has_bias: bool = False, size: str = "intermediate_size") -> MlpSpec:
    """Return a gated MLP with `hidden_act`."""
    return MlpSpec(int(config.need(size)), str(config.get("hidden_act", "silu")), has_bias=has_bias)


def rms_norm_part(config: HfConfig) -> NormSpec:
    """Return an RMS norm with `rms_norm_eps`."""
    return NormSpec("rms", float(config.get("rms_norm_eps", 1e-6)))


def sliding_windows(config: HfConfig, default_types: Sequence[str] | None = None) -> list[Window]:
    """Return each layer's window by `layer_types` and `sliding_window`.

    default_types: where the config lists none; otherwise all layers slide.
    Raises SourceError for a layer type that is not known.
    """
    count = int(config.need("num_hidden_layers"))
    window = config.get("sliding_window")
    types = list(config.get("layer_types", default_types or ["sliding_attention"] * count))
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise config.unsupported("layer_types", kind, ("full_attention", "sliding_attention"))
    return [int(window) if window and kind == "sliding_attention" else None for kind in types]


def layers_part(
    config: HfConfig, feed_forward: MlpSpec | MoeSpec, rope: RopeSpec | None, windows: Sequence[Window] | None = None
) -> tuple[LayerSpec, ...]:
    """Return layers that differ in their window only."""
    windows = windows or [None] * int(config.need("num_hidden_layers"))
    return tuple(LayerSpec(feed_forward, rope, window) for window in windows)


def decoder_part(
    config: HfConfig,
    attention: AttentionSpec,
    layers: tuple[LayerSpec, ...],
    norm: NormSpec,
    names: Mapping[str, str],
) -> DecoderSpec:
    """Return a sequential pre-norm decoder with a norm before its head."""
    return DecoderSpec(
        model_type=str(config.get("model_type", "")),
        vocab_size=int(config.need("vocab_size")),
        hidden_size=int(config.need("hidden_size")),
        max_position_embeddings=int(config.need("max_position_embeddings")),
        attention=attention,
        layers=layers,
        block=BlockSpec(norm),
        head=HeadSpec(norm, bool(config.get("tie_word_embeddings", False))),
        names=names,
        prefix="model.",
    )
