"""Write elements by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


def scatter_last(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Replace elements of each row: x [B, V], places and updates [B, M], of which a row's places differ."""
    graph = x.graph
    layer = graph.network.add_scatter(x.trt, indices.trt, updates.trt, graph.backend.trt.ScatterMode.ELEMENT)
    if layer is not None:
        layer.axis = x.rank - 1
    return graph.add(layer, "scatter")
