"""Layers that rearrange elements or tell shapes."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.errors import ExecutionError
from trtkit.reference.layer import Layer, Lowered, Op, Tensor, sizes


def shuffle(layer: Layer) -> Lowered:
    """Transpose, reshape, transpose. The sizes come from the layer or from input 1.

    0 copies the input's size where `zero_is_placeholder`, -1 takes what is left. Source: IShuffleLayer in NvInfer.h.
    """
    zero_copies = layer.flag("zero_is_placeholder")
    stated = None if layer.has_input(1) else layer.ints("reshape_dims")
    rank = len(layer.input_shape(0))
    first = _permutation(layer.ints("first_transpose"), rank)
    known = layer.known_input(1)
    if known is not None:
        stated = tuple(sizes(known))
    reshapes = layer.has_input(1) or stated is not None
    second = _permutation(layer.ints("second_transpose"), len(layer.output_shape()) if reshapes else rank)

    def run(x: Tensor, shape: Tensor | None = None) -> Tensor:
        if first is not None:
            x = x.permute(first)
        if reshapes:
            wanted = list(stated) if stated is not None else sizes(shape)  # type: ignore[arg-type]
            x = x.reshape(_resolved(wanted, x, zero_copies))
        return x if second is None else x.permute(second)

    return Lowered(run, is_view=True)


def _permutation(padded: tuple[int, ...] | None, rank: int) -> tuple[int, ...] | None:
    """Return a permutation of `rank` axes, None if it changes nothing."""
    order = None if padded is None else padded[:rank]
    return None if order == tuple(range(rank)) else order


def _resolved(wanted: list[int], x: Tensor, zero_copies: bool) -> list[int]:
    """Return sizes without the placeholders 0 and -1."""
    if zero_copies and 0 in wanted:
        wanted = [x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if -1 in wanted and x.numel() == 0:
        rest = 1
        for size in wanted:
            rest *= 1 if size == -1 else size
        wanted = [(0 if rest == 0 else x.numel() // rest) if size == -1 else size for size in wanted]
    return wanted


def squeeze(layer: Layer) -> Lowered:
    """Remove the axes of size 1 that input 1 names; without it, those that are statically 1."""
    if layer.has_input(1):
        return Lowered(lambda x, axes: x.squeeze(tuple(axis % x.dim() for axis in sizes(axes))), is_view=True)
    stated = tuple(axis for axis, size in enumerate(layer.input_shape(0)) if size == 1)
    return Lowered(lambda x: x.squeeze(stated), is_view=True)


def unsqueeze(layer: Layer) -> Lowered:
    """Insert axes of size 1 at the output's axes that input 1 names."""
    known = layer.known_input(1)
    stated = None if known is None else sizes(known)

    def run(x: Tensor, axes: Tensor) -> Tensor:
        new_axes = sizes(axes) if stated is None else stated
        rank = x.dim() + len(new_axes)
        for axis in sorted(new_axis % rank for new_axis in new_axes):
            x = x.unsqueeze(axis)
        return x

    return Lowered(run, is_view=True)


def shape(_layer: Layer) -> Op:
    """Return the input's sizes as an int64 tensor, on the host."""
    return lambda x: torch.tensor(x.shape, dtype=torch.int64)


def concatenation(layer: Layer) -> Op:
    """Join tensors along one axis."""
    axis = layer.number("axis")
    return lambda *parts: torch.cat(parts, axis)


def padding(layer: Layer) -> Op:
    """Pad the last two axes with zeros; negative padding trims."""
    before, after = layer.ints("pre_padding_nd"), layer.ints("post_padding_nd")
    assert before is not None
    assert after is not None
    amounts = [size for pair in zip(reversed(before), reversed(after), strict=True) for size in pair]
    return lambda x: F.pad(x, amounts)


def reverse_sequence(layer: Layer) -> Op:
    """Reverse the first `lengths[i]` elements of each slice along the batch axis."""
    batch, sequence = layer.number("batch_axis"), layer.number("sequence_axis")

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        count = x.shape[sequence]
        position = torch.arange(count, device=x.device)
        length = lengths.reshape(-1, 1).to(position.dtype)
        source = torch.where(position < length, length - 1 - position, position)  # [batch, sequence]
        shape = [1] * x.dim()
        shape[batch], shape[sequence] = x.shape[batch], count
        index = source if batch < sequence else source.t()
        return torch.gather(x, sequence, index.reshape(shape).expand(x.shape))

    return run


def assertion(layer: Layer) -> Op:
    """Raise ExecutionError with the layer's message where an element is false."""
    message = layer.option("message")

    def run(condition: Tensor) -> tuple[()]:
        if not bool(condition.all()):
            raise ExecutionError(f"assertion failed: {message}", layer.name, "check the shapes of the network's inputs")
        return ()

    return run


def one_hot(layer: Layer) -> Op:
    """Set on_value where the new axis equals the index, off_value elsewhere; an index out of range sets nothing.

    Inputs: indices, [off_value, on_value], depth.
    """
    axis = layer.number("axis")

    def run(indices: Tensor, values: Tensor, depth: Tensor) -> Tensor:
        new_axis = axis % (indices.dim() + 1)
        shape = [1] * (indices.dim() + 1)
        shape[new_axis] = int(depth)
        classes = torch.arange(int(depth), device=indices.device).reshape(shape)
        return torch.where(indices.unsqueeze(new_axis) == classes, values[1], values[0])

    return run
