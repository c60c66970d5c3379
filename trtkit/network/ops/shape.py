"""Ops that rearrange elements. Sizes known at run time only pass through untouched."""

from __future__ import annotations

import numpy as np

from trtkit.network.graph import Shape, Tensor, same_graph


def reshape(x: Tensor, shape: Shape) -> Tensor:
    """Give another shape: 0 keeps the axis at that place as it is, -1 takes what is left."""
    layer = x.graph.network.add_shuffle(x.trt)
    layer.reshape_dims = shape
    return x.graph.add(layer, "reshape")


def transpose(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """Put the axes into another order."""
    layer = x.graph.network.add_shuffle(x.trt)
    layer.first_transpose = order
    return x.graph.add(layer, "transpose")


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, S, heads * H] -> [B, heads, S, H]."""
    layer = x.graph.network.add_shuffle(x.trt)
    layer.reshape_dims = (0, 0, heads, -1)
    layer.second_transpose = (0, 2, 1, 3)
    return x.graph.add(layer, "split_heads")


def merge_heads(x: Tensor) -> Tensor:
    """[B, N, S, H] -> [B, S, N * H]."""
    _, heads, _, size = x.shape
    layer = x.graph.network.add_shuffle(x.trt)
    layer.first_transpose = (0, 2, 1, 3)
    layer.reshape_dims = (0, 0, heads * size)
    return x.graph.add(layer, "merge_heads")


def unsqueeze(x: Tensor, *axes: int) -> Tensor:
    """Insert axes of size 1, at these places of the result."""
    places = x.graph.constant(np.array(axes, dtype=np.int64), "axes")
    return x.graph.add(x.graph.network.add_unsqueeze(x.trt, places.trt), "unsqueeze")


def take(x: Tensor, axis: int, start: int, size: int) -> Tensor:
    """Return `size` elements of one axis from `start` on; the other axes whole."""
    layer = x.graph.network.add_slice(x.trt, (start,), (size,), (1,))
    layer.axes = (axis % x.rank,)
    return x.graph.add(layer, "slice")


def split(x: Tensor, axis: int, sizes: tuple[int, ...]) -> list[Tensor]:
    """Cut one axis into parts of these sizes."""
    starts = np.cumsum([0, *sizes[:-1]])
    return [take(x, axis, int(start), size) for start, size in zip(starts, sizes, strict=True)]


def concat(parts: list[Tensor], axis: int) -> Tensor:
    """Join tensors along one axis."""
    if len(parts) == 1:
        return parts[0]
    graph = same_graph(parts)
    layer = graph.network.add_concatenation([part.trt for part in parts])
    layer.axis = axis % parts[0].rank
    return graph.add(layer, "concat")
