"""KV caches: linear, one slot per sequence, written in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.ops.quantize import dequantize, quantize
from trtkit.network.ops.shape import concat, take_as_many

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


def append_quantized(cache: Tensor, new: Tensor, scale: float, window: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return cached keys or values followed by new ones [B, K, T + S, H], and the new ones in the cache's type.

    cache: [B, K, T, H] in int8 or fp8. new: [B, K, S, H]; they are read in quantized form, so that answers do not
    depend on how a prompt is split into calls. TensorRT's KVCacheUpdate accepts no 8-bit type.
    window: [T'], to return only the first T' cached ones.
    """
    graph = cache.graph
    factor = graph.constant(np.array(scale, np.float32), "scale", new.dtype)
    kept = quantize(new, factor, cache.dtype)
    if window is None:
        return dequantize(concat([cache, kept], axis=2), factor, new.dtype), kept
    # TensorRT slices no fp8, so the slice comes after.
    cached = take_as_many(dequantize(cache, factor, new.dtype), 2, window)
    return concat([cached, dequantize(kept, factor, new.dtype)], axis=2), kept
