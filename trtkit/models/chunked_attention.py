"""Attention in chunks, mixed with layers that do not rotate, as Llama 4's config states it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.attention import QueryGrowth
from trtkit.models.parts import biased_attention_part, layer_types, rms_norm_part
from trtkit.models.rope import rope_spec

if TYPE_CHECKING:
    from trtkit.models.attention import AttentionSpec
    from trtkit.models.hf_config import HfConfig

TYPES = ("full_attention", "chunked_attention")


def chunked_attentions(config: HfConfig) -> list[AttentionSpec]:
    """Return each layer's attention: in chunks and rotated, or whole and with queries that grow."""
    count, interval = int(config.need("num_hidden_layers")), int(config.get("no_rope_layer_interval", 4))
    default = [int((index + 1) % interval != 0) for index in range(count)]
    turns = list(config.get("no_rope_layers", default) or default)  # 1 where a layer turns
    if len(turns) < count:
        raise SourceError(f"`no_rope_layers` has {len(turns)} entries for {count} layers", config.where)
    kinds = layer_types(config, [TYPES[bool(turn)] for turn in turns[:count]], TYPES)
    rotated, plain, chunk = _rotated(config), _plain(config), config.get("attention_chunk_size")
    if TYPES[1] in kinds and (chunk is None or int(chunk) < 1):
        raise SourceError(f"`attention_chunk_size` is `{chunk}`; expected at least 1", config.where)
    pairs = zip(turns, kinds, strict=False)
    return [
        replace(rotated if is_rotated else plain, chunk=int(chunk) if kind == TYPES[1] else None)
        for is_rotated, kind in pairs
    ]


def _rotated(config: HfConfig) -> AttentionSpec:
    """Return attention whose queries and keys turn, and are then normed by head without weights."""
    attention = biased_attention_part(config)
    rope = rope_spec(config, attention.head_dim, theta=500000.0, is_interleaved=True)
    if not config.get("use_qk_norm", True):
        return replace(attention, rope=rope)
    norm = replace(rms_norm_part(config), has_weight=False)
    return replace(attention, rope=rope, norm=norm, qk_norm="head", is_rotated_first=True)


def _plain(config: HfConfig) -> AttentionSpec:
    """Return attention without rotation."""
    growth = QueryGrowth(float(config.get("attn_scale", 0.1)), int(config.get("floor_scale", 8192)), first=1)
    has_growth = bool(config.get("attn_temperature_tuning", True))
    return replace(biased_attention_part(config), query_growth=growth if has_growth else None)
