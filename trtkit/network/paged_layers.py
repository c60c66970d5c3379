"""Decoder layers that read pages in place, with the plugin of the custom op PagedAttention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import DTYPES, INT32
from trtkit.models.attention import AttentionSpec
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact

if TYPE_CHECKING:
    from trtkit.models.spec import DecoderSpec
    from trtkit.network.decoder_options import DecoderOptions


def layers_in_place(spec: DecoderSpec, options: DecoderOptions) -> frozenset[int]:
    """Return the numbers of the layers whose attention reads pages in place."""
    if not options.has_pages_in_place:
        return frozenset()
    return frozenset(index for index, obstacle in obstacles(spec, options).items() if not obstacle)


def obstacles(spec: DecoderSpec, options: DecoderOptions) -> dict[int, str]:
    """Return why each attention layer cannot read pages in place, by its number; "" if it can.

    Layers that share caches read them the same way.
    """
    attentions = {index: layer.mixer for index, layer in spec.numbered_layers if isinstance(layer.mixer, AttentionSpec)}
    reasons = {index: _obstacle(attention, options) for index, attention in attentions.items()}
    of_cache: dict[int, str] = {}
    for index, attention in attentions.items():
        owner = index if attention.cache_of is None else attention.cache_of
        of_cache[owner] = of_cache.get(owner, "") or reasons[index]
    return {
        index: of_cache[index if attention.cache_of is None else attention.cache_of]
        for index, attention in attentions.items()
    }


_PART_TOKENS, _MOST_PARTS = 1024, 16


def op_attributes(attention: AttentionSpec, options: DecoderOptions, *, decodes: bool) -> dict[str, float | str]:
    """Return the op's attributes except the caches' scales. A window as long as the slot is left out.

    decodes: whether the rows have few new tokens. Their keys are then shared by several programs, since a few sequences
    would otherwise keep only as many of a GPU's multiprocessors busy as there are key/value heads.
    """
    kv, longest = options.kv_cache, options.max_sequence_length
    window = min(attention.sliding_window or longest, longest)
    attributes: dict[str, float | str] = {
        "window": window if window < longest else 0,
        "softcap": float(attention.softcap or 0),
        "parts": max(1, min(window // _PART_TOKENS, _MOST_PARTS)) if decodes else 1,
    }
    return attributes if kv is None else {**attributes, "quantization": kv.format}


def _obstacle(attention: AttentionSpec, options: DecoderOptions) -> str:
    """Return the first requirement that the op or its plugin does not support."""
    features = {
        "latent attention": attention.latent is not None,
        "ALiBi": attention.has_alibi,
        "relative position scores": attention.relative is not None,
        "chunked attention": (attention.chunk or options.max_sequence_length) < options.max_sequence_length,
        "images whose tokens see each other": options.has_visible_lengths,
        "guesses that form a tree": options.has_tree,
        "ranks that share cached positions": attention.context.count > 1,
    }
    return next((name for name, is_there in features.items() if is_there), "") or _refusal(attention, options)


def _refusal(attention: AttentionSpec, options: DecoderOptions) -> str:
    """Return why the plugin does not support the layer's types or sizes."""
    from trtkit.network.plugin import refusal

    op, dtype = find("PagedAttention"), options.dtype
    heads, shared, size = attention.num_attention_heads, attention.num_key_value_heads, attention.head_dim
    kept = dtype if options.kv_cache is None else DTYPES[options.kv_cache.format]
    pool, new = Fact(kept, (-1, shared, options.page_tokens or 1, size)), Fact(kept, (-1, shared, -1, size))
    of_rows = (Fact(INT32, (-1, -1)), Fact(INT32, (-1,)), Fact(INT32, (-1,)))
    facts = (Fact(dtype, (-1, heads, -1, size)), pool, pool, new, new, *of_rows)
    return refusal(op, facts, op.attributes(**op_attributes(attention, options, decodes=False)))
