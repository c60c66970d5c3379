"""Gather, scatter and non-zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trtkit.reference.layer import Layer, Op, Tensor


def gather(layer: Layer) -> Op:
    """Pick elements by index: slices along an axis, single elements, or by index vectors (ONNX's three gathers).

    A negative index counts from the end. One outside the axis is an error here; TensorRT leaves it undefined.
    """
    axis, batch_dims = layer.number("axis"), layer.number("num_elementwise_dims")
    mode = layer.option("mode")
    if mode == "ND":
        return lambda x, index: _gather_nd(x, index.long(), batch_dims)
    if mode == "ELEMENT":
        return lambda x, index: torch.gather(x, axis, _from_start(index.long(), x.shape[axis]))
    if batch_dims:
        return lambda x, index: _gather_batched(x, index.long(), axis, batch_dims)

    def run(x: Tensor, index: Tensor) -> Tensor:
        at = axis % x.dim()
        if index.dim() == 0 and index.device.type == "cpu":
            return x.select(at, int(index))
        flat = _from_start(index.reshape(-1), x.shape[at])
        picked = x.index_select(at, flat)
        return picked if index.dim() == 1 else picked.reshape(*x.shape[:at], *index.shape, *x.shape[at + 1 :])

    return run


def _from_start(index: Tensor, length: int) -> Tensor:
    """Return indices with those counted from the end made positive."""
    return torch.where(index < 0, index + length, index)


def _gather_batched(x: Tensor, index: Tensor, axis: int, batch_dims: int) -> Tensor:
    """Return slices along an axis; the first axes of x and index run together."""
    at = axis % x.dim()
    batch = index.shape[:batch_dims]
    columns = x.movedim(at, batch_dims)  # [batch, length, rest]
    flat = _from_start(index.reshape(*batch, -1), x.shape[at])
    rest = columns.shape[batch_dims + 1 :]
    spread = flat.reshape(*flat.shape, *[1] * len(rest)).expand(*flat.shape, *rest)
    picked = columns.gather(batch_dims, spread).reshape(*index.shape, *rest)
    axes = list(range(batch_dims, index.dim()))
    return picked.movedim(axes, [at + axis - batch_dims for axis in axes])


def _gather_nd(x: Tensor, index: Tensor, batch_dims: int) -> Tensor:
    """Return what index vectors along the last axis point at."""
    batch = x.shape[:batch_dims]
    columns, vectors = x.reshape(-1, *x.shape[batch_dims:]), index.reshape(-1, *index.shape[batch_dims:])
    depth = index.shape[-1]
    row = torch.arange(columns.shape[0], device=x.device).reshape(-1, *[1] * (vectors.dim() - 2))
    where = [_from_start(vectors[..., axis], columns.shape[axis + 1]) for axis in range(depth)]
    picked = columns[(row.expand(vectors.shape[:-1]), *where)]
    return picked.reshape(*batch, *index.shape[batch_dims:-1], *x.shape[batch_dims + depth :])


def scatter(layer: Layer) -> Op:
    """Copy data and overwrite the elements or slices that indices name; where several name one, any may win."""
    axis = layer.number("axis")
    if layer.option("mode") == "ELEMENT":
        return lambda x, index, updates: x.scatter(axis, _from_start(index.long(), x.shape[axis]), updates)

    def scatter_nd(x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
        vectors = index.long()
        where = tuple(_from_start(vectors[..., axis], x.shape[axis]) for axis in range(index.shape[-1]))
        return x.index_put(where, updates)

    return scatter_nd


def non_zero(layer: Layer) -> Op:
    """Return the positions of non-zero elements in row-major order, one row per axis: [rank, count]."""
    dtype = layer.output_dtype()
    return lambda x: x.nonzero().t().to(dtype)
