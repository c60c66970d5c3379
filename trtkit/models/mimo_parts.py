"""MiMo's attention as its config states it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.parts import attention_part, layer_types, window_part
from trtkit.models.rope import ropes_by_type_alone

if TYPE_CHECKING:
    from trtkit.models.attention import AttentionSpec
    from trtkit.models.hf_config import HfConfig

_PARTIAL = 0.334
_ROPE: dict[str, dict[str, object]] = {
    "full_attention": {"rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": _PARTIAL},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": _PARTIAL},
}


def mimo_attentions(config: HfConfig) -> list[AttentionSpec]:
    """Return each layer's attention: sliding layers have sinks, and twice the key/value heads.

    Raises SourceError for values larger than keys, and for a rotation that does not say how much of a head it turns.
    """
    attention = attention_part(config, has_qkv_bias=bool(config.get("attention_bias", False)))
    value_dim, scale = int(config.need("v_head_dim")), config.get("attention_value_scale", 1.0)
    if value_dim > attention.head_dim:
        raise SourceError(f"`v_head_dim` is {value_dim}, above `head_dim`, {attention.head_dim}", config.where)
    attention = replace(attention, value_dim=value_dim, value_scale=float(scale))
    config.need("sliding_window")
    count, window = int(config.need("num_hidden_layers")), window_part(config)
    others = config.get("sliding_window_size")  # how many tokens before its own a token sees
    usual = ["sliding_attention" if index and (index + 1) % 6 else "full_attention" for index in range(count)]
    types = layer_types(config, usual)
    for kind, stated in config.get("rope_parameters", _ROPE).items():
        if isinstance(stated, dict) and stated.get("partial_rotary_factor") is None:
            what = f"`rope_parameters` of {kind} has no `partial_rotary_factor`"
            raise SourceError(what, config.where, f"state it, {_PARTIAL} if it is transformers' default")
    ropes = ropes_by_type_alone(config, attention.head_dim, types, _ROPE)
    sliding = replace(
        attention,
        num_key_value_heads=2 * attention.num_key_value_heads,
        has_sinks=True,
        sliding_window=window if others is None else int(others) + 1,
    )
    _check_published(config, sliding, types)
    is_sliding = [kind == "sliding_attention" for kind in types]
    layers = [sliding if slides else attention for slides in is_sliding]
    return [replace(layer, rope=ropes[kind]) for layer, kind in zip(layers, types, strict=True)]


def _check_published(config: HfConfig, sliding: AttentionSpec, types: list[str]) -> None:
    """Raise SourceError for what published files state about sliding layers, where it is not what they compute."""
    config.refuse("swa_num_attention_heads", sliding.num_attention_heads)
    config.refuse("swa_num_key_value_heads", sliding.num_key_value_heads)
    config.refuse("swa_head_dim", sliding.head_dim)
    config.refuse("swa_v_head_dim", sliding.value_dim)
    theta = config.get("rope_parameters", _ROPE).get("sliding_attention", {}).get("rope_theta")
    config.refuse("swa_rope_theta", theta)
    config.refuse("add_swa_attention_sink_bias", True)
    config.refuse("add_full_attention_sink_bias", False)
    config.refuse("hybrid_layer_pattern", [int(kind == "sliding_attention") for kind in types])
    config.refuse("attention_projection_layout", "split")
    config.get("attention_chunk_size")  # transformers does not read it
