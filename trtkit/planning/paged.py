"""Paged caches: the pages that sequences take, and what a step copies before attention reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from trtkit.builder.decoders import llm_options, network_options
from trtkit.builder.plugins import reads_pages_in_place
from trtkit.models.attention import AttentionSpec
from trtkit.network.input_spec import kv_window
from trtkit.network.paged_layers import layers_in_place
from trtkit.quantized_matrix import KvQuantization
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig
    from trtkit.models.spec import DecoderSpec
    from trtkit.quantization_methods import CacheFormat


@dataclass(frozen=True)
class CopiedPages:
    """Layers that copy their pages into contiguous memory; the others read them in place.

    layers: how many layers copy. share, largest: the share of the caches' bytes that they copy, and the largest share
    that one layer copies.
    """

    layers: int
    share: Fraction
    largest: Fraction


def whole_pages(tokens: int, page_tokens: int) -> int:
    """Return the number of pages of a sequence of `tokens` tokens."""
    return -(-tokens // page_tokens)


def read_window(tokens: int, length: int, page_tokens: int) -> int:
    """Return the cached tokens per sequence that a call copies if the longest one has `tokens`: a power of two.

    length: capacity of a slot. page_tokens: tokens per page, since whole pages are copied; 0 if caches are linear.
    """
    window = kv_window(tokens, length)
    return whole_pages(window, page_tokens) * page_tokens if page_tokens else window


def copied_pages(
    config: ModelConfig, backend: str, spec: DecoderSpec, cache_format: CacheFormat | None
) -> CopiedPages | None:
    """Return what steps of a config's engine copy; None if its caches are linear.

    cache_format: of 8-bit caches. Raises ConfigError if plugins must always read pages in place and the named backend
    has none.
    """
    if llm_options(config).page_size is None:
        return None
    in_place: frozenset[int] = frozenset()
    if reads_pages_in_place(config, backend):
        kv_cache = None if cache_format is None else KvQuantization(cache_format, {})  # the format decides
        options = replace(network_options(resolve(config)), has_pages_in_place=True, kv_cache=kv_cache)
        in_place = layers_in_place(spec, options)
    return page_copies(spec, in_place)


def page_copies(spec: DecoderSpec, in_place: frozenset[int] = frozenset()) -> CopiedPages:
    """Return what steps copy if all layers copy their pages, except the layers numbered `in_place`."""
    attentions = {index: layer.mixer for index, layer in spec.numbered_layers if isinstance(layer.mixer, AttentionSpec)}
    cached = {index: attention.cached_elements for index, attention in attentions.items() if attention.caches}
    copied = [elements for index, elements in cached.items() if index not in in_place]
    all_ = sum(cached.values()) or 1
    return CopiedPages(len(copied), Fraction(sum(copied), all_), Fraction(max(copied, default=0), all_))
