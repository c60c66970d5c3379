"""Pick and write elements by index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.network.ops.arithmetic import select
from trtkit.network.ops.shape import unsqueeze

if TYPE_CHECKING:
    from trtkit.models.share import Share
    from trtkit.network.graph import Tensor


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Look up rows: ids [B, S], table [V, D] -> [B, S, D]."""
    return ids.graph.add(ids.graph.network.add_gather(table.trt, ids.trt, 0), "gather")


def embedding_part(ids: Tensor, table: Tensor, share: Share) -> Tensor:
    """Look up rows of a table [rows, D] that is one rank's share of a whole one: ids [B, S] -> [B, S, D].

    Ids that other ranks hold are zeros here: the sum of the ranks' results is the embedding.
    """
    rows = table.shape[0]
    local = ids - share.index * rows
    is_here = (local > -1) & (local < rows)
    rows_here = embedding(select(is_here, local, 0), table)
    return select(unsqueeze(is_here, 2), rows_here, 0.0)


def token_at(x: Tensor, index: Tensor) -> Tensor:
    """Pick one token of each sequence, or several: x [B, S, D], index [B] or [B, n] -> [B, D] or [B, n, D]."""
    graph = x.graph
    layer = graph.network.add_gather_v2(x.trt, unsqueeze(index, index.rank).trt, graph.backend.trt.GatherMode.ND)
    layer.num_elementwise_dims = 1
    return graph.add(layer, "gather")


def reorder(x: Tensor, order: Any, axis: int = -1) -> Tensor:
    """Reorder or repeat elements of an axis: element i of the result is element order[i] of x."""
    graph = x.graph
    at = graph.constant(np.asarray(order, np.int32), "order")
    return graph.add(graph.network.add_gather(x.trt, at.trt, axis % x.rank), "reorder")


def entries(x: Tensor, axis: int, indices: Tensor) -> Tensor:
    """Return the elements of one axis at indices [M], which replaces the axis by M."""
    return x.graph.add(x.graph.network.add_gather(x.trt, indices.trt, axis), "gather")


def pick(x: Tensor, index: int) -> Tensor:
    """Pick one element of the first axis, which is removed: x [A, ...] -> [...]."""
    graph = x.graph
    at = graph.constant(np.array(index, np.int32), "index")
    return graph.add(graph.network.add_gather(x.trt, at.trt, 0), "pick")


def scatter_last(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Replace elements of each row: x [B, V], indices and updates [B, M]; a row's indices must be distinct."""
    graph = x.graph
    layer = graph.network.add_scatter(x.trt, indices.trt, updates.trt, graph.backend.trt.ScatterMode.ELEMENT)
    if layer is not None:
        layer.axis = x.rank - 1
    return graph.add(layer, "scatter")
