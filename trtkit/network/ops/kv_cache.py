"""KV caches: linear, one slot per sequence, written in place; or read-only, with new keys and values after them."""

from __future__ import annotations

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


def head_tables(tables: Tensor, heads: int) -> Tensor:
    """Return where the pages of tables [B, n] begin in a pool whose heads are parted [P * K, page, H]: [B, K, n]."""
    offsets = tables.graph.constant(np.arange(heads).reshape(1, heads, 1), "heads", tables.dtype)
    return unsqueeze(tables, 1) * heads + offsets


def pages_of(pool: Tensor, tables: Tensor) -> Tensor:
    """Return the pages of each sequence in order: pool [P, K, page, H], tables [B, K, n] -> [B, K, n * page, H].

    tables: see `head_tables`. They are gathered head by head, so that the copy is in attention's order at once.
    Source: https://arxiv.org/abs/2309.06180.
    """
    _, heads, page, size = pool.shape
    return reshape(entries(reshape(pool, (-1, page, size)), 0, tables), (0, heads, -1, size))


def append(cached: Tensor, new: Tensor) -> Tensor:
    """Return cached keys or values [B, K, T, H] followed by new ones [B, K, S, H]."""
    return concat([cached, new], axis=2)


def quantized(cache: Tensor, new: Tensor, scale: float) -> Tensor:
    """Return new keys or values as a cache in int8 or fp8 keeps them."""
    return quantize(new, scale_constant(new.graph, scale, "scale", new.dtype), cache.dtype)


def append_quantized(
    cache: Tensor, tables: Tensor | None, new: Tensor, scale: float, window: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return cached keys or values followed by new ones [B, K, T + S, H], and the new ones in the cache's type.

    cache: [B, K, T, H] in int8 or fp8; or, with tables, a pool of pages and each sequence's, see `pages_of`.
    new: [B, K, S, H]; they are read in quantized form, so that answers do not depend on how a prompt is split into
    calls. TensorRT's KVCacheUpdate accepts no 8-bit type.
    window: [T'], to return only the first T' cached ones.
    """
    factor = scale_constant(cache.graph, scale, "scale", new.dtype)
    kept = quantize(new, factor, cache.dtype)
    if window is None:
        return dequantize(append(cache, kept), factor, new.dtype), kept
    if tables is not None and cache.dtype == INT8:
        return dequantize(append(pages_of(cache, tables), kept), factor, new.dtype), kept
    # TensorRT slices and gathers no fp8, so that comes after.
    real = dequantize(cache, factor, new.dtype)
    cached = take_as_many(real, 2, window) if tables is None else pages_of(real, tables)
    return append(cached, dequantize(kept, factor, new.dtype)), kept
