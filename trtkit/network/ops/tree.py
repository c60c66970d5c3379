"""Which new tokens see each other where they form a tree: guesses of what follows, with alternatives.

A tree lies in the cache in depth-first order, so a token's descendants follow it without a gap. One number per token
then says who descends from it: the place after the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import INT32
from trtkit.network.ops.arithmetic import cast, maximum, minimum, select
from trtkit.network.ops.shape import concat, take, take_as_many, unsqueeze

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


def tree_places(write_indices: Tensor, branch_ends: Tensor, length: int) -> Tensor:
    """Return where new tokens lie in caches of `length` tokens: write_indices [B], branch_ends [B, S] -> [B, S]."""
    graph = write_indices.graph
    with graph.scope("tree_places"):
        offsets = graph.constant(np.arange(length, dtype=np.int32).reshape(1, -1), "offsets")
        return unsqueeze(write_indices, 1) + take_as_many(offsets, 1, branch_ends)


def tree_mask(
    positions: Tensor, branch_ends: Tensor, cached: Tensor, write_indices: Tensor, *, is_appended: bool
) -> Tensor:
    """Return false where a key is a new token that the query does not descend from: [B, 1, S, keys].

    Keys after the query, and those that no token sees, are left to `causal_mask`.

    places, branch_ends: [B, S], where each new token lies, and the place after its last descendant. cached: places of a
    cache's keys [1, 1, 1, T]. write_indices: [B]. is_appended: whether new keys follow the cached ones; otherwise they
    are among them.
    Source: tree attention, https://arxiv.org/abs/2401.10774, whose mask this is.
    """
    with positions.graph.scope("tree_mask"):
        starts = unsqueeze(write_indices, 1, 2, 3)
        if is_appended:
            far = (cached - starts) * 0 + _FAR
            ends = concat([far, unsqueeze(branch_ends, 1, 2)], axis=-1)
        else:
            ends = select(
                cached < starts, positions.graph.number(_FAR, INT32, 4), _of_keys(branch_ends, cached - starts)
            )
        return unsqueeze(positions, 1, 3) < ends


def _of_keys(branch_ends: Tensor, offsets: Tensor) -> Tensor:
    """Return the ends of keys at offsets [B, 1, 1, T] from the first new token; any for those that are not new."""
    graph = branch_ends.graph
    sizes = graph.add(graph.network.add_shape(branch_ends.trt), "shape")
    last = cast(take(sizes, 0, 1, 1), INT32) - 1
    within = minimum(maximum(offsets, 0), last)
    layer = graph.network.add_gather_v2(
        unsqueeze(branch_ends, 1, 2).trt, within.trt, graph.backend.trt.GatherMode.ELEMENT
    )
    layer.axis = 3
    return graph.add(layer, "gather")


_FAR = 1 << 30  # beyond any place
