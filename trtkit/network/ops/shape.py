"""Ops that rearrange elements. Sizes known at run time only pass through untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.graph import Shape, Tensor, same_graph

if TYPE_CHECKING:
    from collections.abc import Sequence


def reshape(x: Tensor, shape: Shape) -> Tensor:
    """Change the shape: 0 keeps the axis in that place, -1 is computed from the rest."""
    layer = x.graph.network.add_shuffle(x.trt)
    layer.reshape_dims = shape
    return x.graph.add(layer, "reshape")


def transpose(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """Reorder the axes."""
    layer = x.graph.network.add_shuffle(x.trt)
    layer.first_transpose = order
    return x.graph.add(layer, "transpose")


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, S, heads * H] -> [B, heads, S, H]."""
    layer = x.graph.network.add_shuffle(x.trt)
    layer.reshape_dims = (0, 0, heads, x.shape[2] // heads)  # -1 cannot be told from no elements
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
    """Insert axes of size 1 at these positions of the result."""
    axes_tensor = x.graph.constant(np.array(axes, dtype=np.int64), "axes")
    return x.graph.add(x.graph.network.add_unsqueeze(x.trt, axes_tensor.trt), "unsqueeze")


def squeeze(x: Tensor, *axes: int) -> Tensor:
    """Remove these axes, which have size 1."""
    axes_tensor = x.graph.constant(np.array(axes, dtype=np.int64), "axes")
    return x.graph.add(x.graph.network.add_squeeze(x.trt, axes_tensor.trt), "squeeze")


def take(x: Tensor, axis: int, start: int, size: int) -> Tensor:
    """Return `size` elements of one axis, starting at `start`."""
    layer = x.graph.network.add_slice(x.trt, (start,), (size,), (1,))
    layer.axes = (axis % x.rank,)
    return x.graph.add(layer, "slice")


def take_as_many(x: Tensor, axis: int, other: Tensor, *, start: int = 0, axis_of_other: int = -1) -> Tensor:
    """Return elements of one axis from `start` on, as many as `other` has along an axis, known at run time only."""
    sizes = x.graph.add(x.graph.network.add_shape(other.trt), "shape")
    layer = x.graph.network.add_slice(x.trt, (start,), (1,), (1,))
    layer.axes = (axis % x.rank,)
    layer.set_input(2, (take(sizes, 0, axis_of_other % other.rank, 1) if other.rank > 1 else sizes).trt)
    return x.graph.add(layer, "slice")


def size_of(x: Tensor) -> Tensor:
    """Return the sizes of a tensor's axes, known at run time only: int64 [rank]."""
    return x.graph.add(x.graph.network.add_shape(x.trt), "shape")


def slice_of(x: Tensor, start: Tensor | int, size: Tensor, axis: int = 0) -> Tensor:
    """Return elements of one axis from `start` on, as many as `size`. Tensors: int64 [1], known at run time."""
    layer = x.graph.network.add_slice(x.trt, (start if isinstance(start, int) else 0,), (1,), (1,))
    layer.axes = (axis % x.rank,)
    if not isinstance(start, int):
        layer.set_input(1, start.trt)
    layer.set_input(2, size.trt)
    return x.graph.add(layer, "slice")


def split_like(x: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    """Cut the last axis into pieces of the sizes that `parts` have there, known at run time only."""
    if len(parts) == 1:
        return [x]
    pieces, start = [], None
    for part in parts:
        size = take(size_of(part), 0, part.rank - 1, 1)
        pieces.append(slice_of(x, 0 if start is None else start, size, -1))
        start = size if start is None else start + size
    return pieces


def padded_to(x: Tensor, axis: int, size: Tensor) -> Tensor:
    """Return x with zeros after the elements of one axis, up to `size`: int64 [1], known at run time only."""
    layer = x.graph.network.add_slice(x.trt, (0,), (1,), (1,))
    layer.axes = (axis % x.rank,)
    layer.mode = x.graph.backend.trt.SampleMode.FILL
    layer.set_input(2, size.trt)
    return x.graph.add(layer, "pad")


def reshape_to(x: Tensor, shape: Tensor) -> Tensor:
    """Return x in a shape that is known at run time only: int64 [rank]."""
    layer = x.graph.network.add_shuffle(x.trt)
    layer.set_input(1, shape.trt)
    return x.graph.add(layer, "reshape")


def reshape_like(x: Tensor, other: Tensor) -> Tensor:
    """Return x in the shape of another tensor of as many elements."""
    return reshape_to(x, size_of(other))


def split(x: Tensor, axis: int, sizes: tuple[int, ...]) -> list[Tensor]:
    """Split one axis into parts of these sizes."""
    starts = np.cumsum([0, *sizes[:-1]])
    return [take(x, axis, int(start), size) for start, size in zip(starts, sizes, strict=True)]


def concat(parts: list[Tensor], axis: int) -> Tensor:
    """Concatenate tensors along one axis."""
    if len(parts) == 1:
        return parts[0]
    graph = same_graph(parts)
    layer = graph.network.add_concatenation([part.trt for part in parts])
    layer.axis = axis % parts[0].rank
    return graph.add(layer, "concat")
