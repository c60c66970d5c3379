"""KV caches: linear, one slot per sequence, written in place; or read-only, with new keys and values after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import INT8
from trtkit.network.ops.gather import entries
from trtkit.network.ops.quantize import dequantize, quantize, scale_constant
from trtkit.network.ops.shape import concat, reshape, take_as_many, unsqueeze

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


def update_cache(cache: Tensor, update: Tensor, write_indices: Tensor) -> Tensor:
    """Write update [B, K, S, H] into cache [B, K, T, H] at write_indices [B], which keep it within T.

    TensorRT requires the cache to be a network input and the result a network output; both share one memory.
    Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/KVCacheUpdate.html
    """
    graph = cache.graph
    mode = graph.backend.trt.KVCacheMode.LINEAR
    return graph.add(graph.network.add_kv_cache_update(cache.trt, update.trt, write_indices.trt, mode), "kv_cache")


@dataclass(frozen=True, eq=False)
class CacheIndex:
    """Indices of some rows' tokens in page pools [P, K, T, H], which hold other rows' tokens too.

    Entries are numbered as if the pools' first axes were one, so that a copy is in attention's order immediately.
    entries: [B, K, n], the pages of each row's heads in order, or their tokens. is_by_page: whether entries are pages.
    Source: https://arxiv.org/abs/2309.06180.
    """

    entries: Tensor
    is_by_page: bool = True

    def of(self, cache: Tensor) -> Tensor:
        """Return the rows' tokens in order [B, K, T', H]."""
        _, heads, length, size = cache.shape
        if self.is_by_page:
            return reshape(entries(reshape(cache, (-1, length, size)), 0, self.entries), (0, heads, -1, size))
        return entries(reshape(cache, (-1, size)), 0, self.entries)


def index_of_pages(tables: Tensor, heads: int) -> CacheIndex:
    """Return the index of the pages in tables [B, n] in pools with `heads`."""
    return CacheIndex(unsqueeze(tables, 1) * heads + _numbers(tables, heads))


def index_of_tokens(pages: Tensor, columns: Tensor, heads: int, page_tokens: int) -> CacheIndex:
    """Return the index of the tokens in `pages` [B, T'] at `columns` [1, T'].

    There may be no rows; then pages could not be joined, since a size that is inferred from the others is unknown.
    """
    by_head = unsqueeze(pages, 1) * heads + _numbers(pages, heads)
    return CacheIndex(by_head * page_tokens + unsqueeze(columns, 1), is_by_page=False)


def _numbers(like: Tensor, heads: int) -> Tensor:
    """Return the head indices [1, K, 1]."""
    return like.graph.constant(np.arange(heads).reshape(1, heads, 1), "heads", like.dtype)


def append(cached: Tensor, new: Tensor) -> Tensor:
    """Return cached keys or values [B, K, T, H] followed by new ones [B, K, S, H]."""
    return concat([cached, new], axis=2)


def quantized(cache: Tensor, new: Tensor, scale: float) -> Tensor:
    """Return new keys or values quantized to a cache's int8 or fp8."""
    return quantize(new, scale_constant(new.graph, scale, "scale", new.dtype), cache.dtype)


def append_quantized(
    cache: Tensor, index: CacheIndex | None, new: Tensor, scale: float, window: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return cached keys or values followed by new ones [B, K, T + S, H], and the new ones in the cache's type.

    cache: [B, K, T, H] in int8 or fp8; or, with an index, a pool of pages.
    new: [B, K, S, H]; they are read in quantized form, so that answers do not depend on how a prompt is split into
    calls. TensorRT's KVCacheUpdate accepts no 8-bit type.
    window: [T'], to return only the first T' cached ones.
    """
    factor = scale_constant(cache.graph, scale, "scale", new.dtype)
    kept = quantize(new, factor, cache.dtype)
    if index is None and window is None:
        return dequantize(append(cache, kept), factor, new.dtype), kept
    if index is not None and cache.dtype == INT8:
        return dequantize(append(index.of(cache), kept), factor, new.dtype), kept
    # TensorRT cannot slice or gather fp8, so the cast comes after.
    real = dequantize(cache, factor, new.dtype)
    cached = index.of(real) if index is not None else take_as_many(real, 2, window) if window is not None else real
    return append(cached, dequantize(kept, factor, new.dtype)), kept
