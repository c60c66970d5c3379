"""Layers of the Granite models that slide."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.parts import biased_attention_part, layers_part, sliding_windows
from trtkit.models.rope import rope_spec

if TYPE_CHECKING:
    from trtkit.models.feed_forward import MlpSpec, MoeSpec
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import LayerSpec

SINKS = {"attention.sinks": "self_attn.sinks"}


def sliding_granite_layers(config: HfConfig, feed_forward: MlpSpec | MoeSpec) -> tuple[LayerSpec, ...]:
    """Return layers with sinks, of which all but every fourth slide, and each has a rotary base of its own.

    Raises SourceError for bases of another number of layers.
    """
    attention = biased_attention_part(config)
    attention = replace(attention, scale=float(config.get("attention_multiplier", 1.0)), has_sinks=True)
    count = int(config.need("num_hidden_layers"))
    types = ["sliding_attention" if index % 4 else "full_attention" for index in range(count)]
    windows, rope = sliding_windows(config, types), rope_spec(config, attention.head_dim)
    thetas = [float(theta) for theta in config.get("layer_rope_theta", [rope.theta] * count)]
    if len(thetas) != count:
        raise SourceError(f"`layer_rope_theta` has {len(thetas)} entries for {count} layers", config.where)
    ropes = [replace(rope, theta=theta) if theta else None for theta in thetas]  # 0: no rotation
    return layers_part(config, attention, feed_forward, ropes, windows)
