"""KV caches: linear, one slot per sequence, written in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
