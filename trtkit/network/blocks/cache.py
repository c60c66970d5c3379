"""What a layer keeps of earlier tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.network.ops.kv_cache import append_quantized, update_cache
from trtkit.network.ops.shape import take_as_many

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.network.graph import Tensor


@dataclass(frozen=True, eq=False)
class Past:
    """A layer's caches [B, K, T, H] by name, and the position of each sequence's new tokens [B].

    shared: those of the layer that the layer reads, already updated, if it has no caches.
    scales: of the caches, if they have 8 bits.
    window: [T'], positions of the cached tokens that attention reads, from 0 on; None if it reads all T.
    """

    caches: Mapping[str, Tensor]
    write_indices: Tensor
    shared: Mapping[str, Tensor] | None = None
    scales: Mapping[str, float] | None = None
    window: Tensor | None = None


def remember(past: Past, new: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Past]:
    """Return by cache all that attention reads, and what the caches get: `new` holds [B, K, S, H]."""
    read, kept = {}, {}
    for name, cache in past.caches.items():
        with cache.graph.scope(f"past_{name}"):
            if past.scales is not None:
                read[name], kept[name] = append_quantized(cache, new[name], past.scales[name], past.window)
                continue
            kept[name] = update_cache(cache, new[name], past.write_indices)
    for name, cache in (past.shared or ({} if past.scales is not None else kept)).items():
        with cache.graph.scope(f"past_{name}"):
            read[name] = cache if past.window is None else take_as_many(cache, 2, past.window)
    return read, replace(past, caches=kept)
