"""KV-cache update."""

from __future__ import annotations

import torch

from trtkit.reference.layer import Layer, Op, Tensor, sizes

# Shapes: B sequences, S new tokens, T cached tokens, K key/value heads, H head size.


def kv_cache_update(layer: Layer) -> Op:
    """Write new keys or values into a cache [B, K, T, H] from position write_indices[b] of each sequence on.

    Inputs: cache, update [B, K, S, H] or packed [tokens, K, H], write indices [B], cumulative update lengths.
    TensorRT's output shares the cache's memory; here it does where the executor was told so, else it is a copy.
    Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/KVCacheUpdate.html
    """
    in_place, once = layer.settings.in_place_caches, layer.settings.memo.once
    is_packed = layer.option("update_form") == "PACKED_NHD"

    def run(cache: Tensor, update: Tensor, write_indices: Tensor, lengths: Tensor | None = None) -> Tensor:
        cache = cache if in_place else cache.clone()
        if cache.device.type != "cpu" and not is_packed:  # a device is not waited for: torch checks positions there
            cache.transpose(1, 2)[once(_places, write_indices, update.shape[2])] = update.transpose(1, 2)
            return cache
        starts = once(sizes, write_indices)
        if is_packed and lengths is not None:
            _write_packed(cache, update, starts, once(sizes, lengths))
            return cache
        _check(max(starts), min(starts), update.shape[2], cache)
        if len(starts) > 1 and update.shape[2] == 1:
            cache.transpose(1, 2)[once(_places, write_indices, 1)] = update.transpose(1, 2)
            return cache
        for index, first in enumerate(starts):
            cache[index, :, first : first + update.shape[2]] = update[index]
        return cache

    return run


def _places(write_indices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the sequence [B, 1] and the positions [B, S] of each sequence's new tokens."""
    sequence, new = (torch.arange(size, device=write_indices.device) for size in (len(write_indices), count))
    return sequence[:, None], write_indices.long()[:, None] + new


def _write_packed(cache: Tensor, update: Tensor, starts: list[int], ends: list[int]) -> None:
    """Write update [tokens, K, H]; sequence b's tokens are those from ends[b] to ends[b + 1]."""
    for index, first in enumerate(starts):
        one = update[ends[index] : ends[index + 1]].transpose(0, 1)
        _check(first, first, one.shape[1], cache)
        cache[index, :, first : first + one.shape[1]] = one


def _check(last: int, first: int, count: int, cache: Tensor) -> None:
    """Raise IndexError where `count` tokens from position `first` or `last` on do not fit."""
    if first < 0 or last + count > cache.shape[2]:
        at = first if first < 0 else last
        raise IndexError(f"{count} tokens at {at} do not fit a cache of {cache.shape[2]}")
