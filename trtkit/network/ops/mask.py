"""Which tokens each new token may attend to, and how far they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import FP16, FP32, INT32
from trtkit.models.context import ALL_POSITIONS
from trtkit.network.ops.arithmetic import cast, equal, maximum, minimum, select
from trtkit.network.ops.gather import embedding
from trtkit.network.ops.shape import concat, squeeze, take, take_as_many, transpose, unsqueeze

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.models.context import ContextShare
    from trtkit.network.graph import Graph, Tensor


def cached_positions(graph: Graph, length: int, context: ContextShare = ALL_POSITIONS) -> Tensor:
    """Return the positions of a cache's keys [1, 1, 1, length]: a key's index, if one rank caches all positions."""
    return graph.constant(context.positions(length).astype(np.int32).reshape(1, 1, 1, -1), "cached_positions")


def appended_positions(
    position_ids: Tensor, write_indices: Tensor, cached: Tensor, context: ContextShare = ALL_POSITIONS
) -> Tensor:
    """Return the positions of a cache's keys, cached [1, 1, 1, T], followed by new ones: [B, 1, 1, T + S].

    position_ids: [B, S]. write_indices: [B], the number of keys in each slot's cache; later entries are empty, and get
    a position beyond any token. context: the positions that this rank attends to; new tokens at others get one, too.
    """
    graph, new = position_ids.graph, position_ids
    with graph.scope("key_positions"):
        held = select(cached < unsqueeze(write_indices, 1, 2, 3), cached, _NOWHERE)
        if not context.is_whole:
            blocks = graph.elementwise("FLOOR_DIV", new, context.block)
            ranks = context.share.count
            turn = blocks - graph.elementwise("FLOOR_DIV", blocks, ranks) * ranks
            new = select(equal(turn, context.share.index), new, _NOWHERE)
        return concat([held, unsqueeze(new, 1, 2)], axis=-1)


def causal_mask(
    position_ids: Tensor,
    kv_lengths: Tensor,
    keys: Tensor | int,
    window: int | None = None,
    visible_lengths: Tensor | None = None,
) -> Tensor:
    """Return true where a token may attend: position_ids [B, S], kv_lengths [B] -> [B, 1, S, keys].

    A token sees keys up to its own position, only the last `window` if set, and none beyond the slot's length.

    keys: their positions, or the length of a cache. visible_lengths: [B, S], how many keys each token
    sees in place of those up to its own position.
    """
    graph = position_ids.graph
    with graph.scope("sliding_mask" if window else "causal_mask"):
        columns = cached_positions(graph, keys) if isinstance(keys, int) else keys
        rows = unsqueeze(position_ids, 1, 3)
        ends = rows + 1 if visible_lengths is None else unsqueeze(visible_lengths, 1, 3)
        allowed = (columns < ends) & (columns < unsqueeze(kv_lengths, 1, 2, 3))
        return allowed & (columns > rows - window) if window else allowed


def chunk_mask(position_ids: Tensor, keys: Tensor, chunk: int) -> Tensor:
    """Return true where keys are not before a token's own chunk: position_ids [B, S] -> [B, 1, S, keys]."""
    graph = position_ids.graph
    with graph.scope("chunk_mask"):
        rows = unsqueeze(position_ids, 1, 3)
        first = graph.elementwise("FLOOR_DIV", rows, chunk) * chunk
        return keys > first - 1


def alibi_mask(
    allowed: Tensor, position_ids: Tensor, slopes: np.ndarray[Any, Any], dtype: DType, keys: Tensor | None = None
) -> Tensor:
    """Return ALiBi's addition to scores, the lowest value if not allowed: [B, 1, S, T] -> [B, N, S, T].

    Distances rather than key positions are scaled: the softmax is the same, and near keys stay exact in 16 bits.

    keys: their positions, if they are not those of a cache.
    Source: https://arxiv.org/abs/2108.12409.
    """
    graph = allowed.graph
    with graph.scope("alibi"):
        distance = (cached_positions(graph, allowed.shape[-1]) if keys is None else keys) - unsqueeze(
            position_ids, 1, 3
        )
        slope = graph.constant(slopes.astype(np.float32).reshape(1, -1, 1, 1), "slopes")
        return cast(select(allowed, cast(distance, FP32) * slope, lowest(dtype)), dtype)


def relative_mask(allowed: Tensor, position_ids: Tensor, scores: Tensor, keys: Tensor) -> Tensor:
    """Return the score of each key's distance, the lowest value if not allowed: [B, 1, S, T] -> [B, N, S, T].

    scores: [distances, N], of keys that are 0, 1, 2, ... tokens back. keys: their positions.
    Source: https://arxiv.org/abs/1910.10683, section 2.1.
    """
    with allowed.graph.scope("relative_bias"):
        distance = unsqueeze(position_ids, 1, 3) - keys
        back = minimum(maximum(distance, 0), scores.shape[0] - 1)
        by_head = squeeze(transpose(embedding(back, scores), (0, 4, 2, 3, 1)), 4)
        return select(allowed, by_head, lowest(scores.dtype))


def alibi_slopes(heads: int) -> np.ndarray[Any, Any]:
    """Return each head's slope: a geometric sequence, plus odd members of a finer one beyond a power of two."""
    power = 2 ** math.floor(math.log2(heads))
    base = 2.0 ** (-8.0 / power)
    slopes = [base ** (index + 1) for index in range(power)]
    fine = 2.0 ** (-4.0 / power)
    slopes += [fine ** (2 * index + 1) for index in range(heads - power)]
    return np.array(slopes)


def lowest(dtype: DType) -> float:
    """Return a finite score far below all others: rows without any key must not become NaN."""
    return -65504.0 if dtype == FP16 else -3.0e38


# Further than any position, so that nothing attends to it.
_NOWHERE = 1 << 30


def tree_places(write_indices: Tensor, branch_ends: Tensor, length: int) -> Tensor:
    """Return the positions of new tokens in caches of `length`: write_indices [B], branch_ends [B, S] -> [B, S].

    A tree is in the cache in depth-first order, so a token's descendants follow it without a gap. One number per token
    therefore defines its descendants: the position after the last one.
    """
    graph = write_indices.graph
    with graph.scope("tree_places"):
        offsets = graph.constant(np.arange(length, dtype=np.int32).reshape(1, -1), "offsets")
        return unsqueeze(write_indices, 1) + take_as_many(offsets, 1, branch_ends)


def tree_mask(
    positions: Tensor, branch_ends: Tensor, cached: Tensor, write_indices: Tensor, *, is_appended: bool
) -> Tensor:
    """Return false where a key is a new token that the query does not descend from: [B, 1, S, keys].

    Keys after the query, and those that no token sees, are left to `causal_mask`.

    positions, branch_ends: [B, S], each new token's position in the cache, and the position after its last descendant.
    cached: positions of a cache's keys [1, 1, 1, T]. write_indices: [B]. is_appended: whether new keys follow the
    cached ones; otherwise they are among them.
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
