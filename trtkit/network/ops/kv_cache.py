"""KV caches: linear, one slot per sequence, written in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.ops.quantize import dequantize, quantize
from trtkit.network.ops.shape import concat

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


def update_cache(cache: Tensor, update: Tensor, write_indices: Tensor) -> Tensor:
    """Write update [B, K, S, H] into cache [B, K, T, H] from write_indices [B] on, which leaves S within T.

    TensorRT wants the cache to be a network input and the result a network output; both share one memory.
    Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/KVCacheUpdate.html
    """
    graph = cache.graph
    mode = graph.backend.trt.KVCacheMode.LINEAR
    return graph.add(graph.network.add_kv_cache_update(cache.trt, update.trt, write_indices.trt, mode), "kv_cache")


def append_quantized(cache: Tensor, new: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return cached keys or values with new ones behind them [B, K, T + S, H], and the new ones in the cache's type.

    cache: [B, K, T, H] in int8 or fp8; new: [B, K, S, H]. New ones are read as they will be kept, so that no answer
    depends on how a prompt is cut into calls. TensorRT's KVCacheUpdate takes no type of eight bits.
    """
    graph = cache.graph
    factor = graph.constant(np.array(scale, np.float32), "scale", new.dtype)
    kept = quantize(new, factor, cache.dtype)
    return dequantize(concat([cache, kept], axis=2), factor, new.dtype), kept
