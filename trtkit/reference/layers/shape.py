"""Rearranging, selecting and generating elements: shuffle, slice, gather, scatter, fill."""

import math
import os

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.errors import ExecutionError
from trtkit.reference.layer import Layer, Lowered, Op, Tensor, sizes


def shuffle(layer: Layer) -> Lowered:
    """Transpose, reshape, transpose. The sizes come from the layer or from input 1.

    0 copies the input's size if `zero_is_placeholder`, -1 is inferred. Source: IShuffleLayer in NvInfer.h.
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
    """Return a permutation of `rank` axes, None if it is the identity."""
    order = None if padded is None else padded[:rank]
    return None if order == tuple(range(rank)) else order


def _resolved(wanted: list[int], x: Tensor, zero_copies: bool) -> list[int]:
    """Return sizes without the placeholders 0 and -1.

    Without elements, -1 could be any size; it is then computed as if an empty axis that is kept had one element.
    """
    if zero_copies and 0 in wanted:
        wanted = [x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if -1 in wanted and x.numel() == 0:
        empty = {axis for axis, size in enumerate(wanted) if size == 0 and axis < x.dim() and x.shape[axis] == 0}
        rest = math.prod(size for axis, size in enumerate(wanted) if size != -1 and axis not in empty)
        elements = math.prod(size for axis, size in enumerate(x.shape) if axis not in empty)
        wanted = [(elements // rest if rest else 0) if size == -1 else size for size in wanted]
    return wanted


def squeeze(layer: Layer) -> Lowered:
    """Remove the axes of size 1 listed in input 1; without it, those that are statically 1."""
    if layer.has_input(1):
        return Lowered(lambda x, axes: x.squeeze(tuple(axis % x.dim() for axis in sizes(axes))), is_view=True)
    stated = tuple(axis for axis, size in enumerate(layer.input_shape(0)) if size == 1)
    return Lowered(lambda x: x.squeeze(stated), is_view=True)


def unsqueeze(layer: Layer) -> Lowered:
    """Insert axes of size 1 at the output axes listed in input 1."""
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
    """Concatenate tensors along one axis."""
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
    """Raise ExecutionError with the layer's message if any element is false."""
    message = layer.option("message")

    def run(condition: Tensor) -> tuple[()]:
        if not bool(condition.all()):
            raise ExecutionError(f"assertion failed: {message}", layer.name, "check the shapes of the network's inputs")
        return ()

    return run


def one_hot(layer: Layer) -> Op:
    """Set on_value where the new axis equals the index, off_value elsewhere; out-of-range indices set nothing.

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


START, SIZE, STRIDE, FILL, AXES = 1, 2, 3, 4, 5
"""Input numbers of ISliceLayer::setInput."""
_MOST_VIEWS = 256  # that a layer remembers, by the shapes and numbers it was given


def slice_layer(layer: Layer) -> Lowered:
    """Take `size` elements per axis from `start` in steps of `stride`, which may be 0 or negative.

    Each of these comes from the layer or from an input; with axes, they apply to those axes only. Source: ISliceLayer
    and SampleMode in NvInfer.h.
    """
    mode = layer.option("mode")
    stated = {
        START: layer.ints("start"),
        SIZE: layer.ints("shape"),
        STRIDE: layer.ints("stride"),
        AXES: layer.ints("axes"),
    }
    for index in stated:
        known = layer.known_input(index)
        if known is not None:
            stated[index] = tuple(sizes(known))

    indices = [index for index, value in stated.items() if value is None and layer.has_input(index)]
    views: dict[tuple[object, ...], tuple[slice, ...]] = {}

    def run(x: Tensor, *optional: Tensor | None) -> Tensor:
        numbers = {index: tuple(sizes(optional[index - 1])) for index in indices}  # type: ignore[arg-type]
        key = (x.shape, *numbers.values())
        if (view := views.get(key)) is not None:
            return x[view]
        now = {**stated, **numbers}
        start, size, stride = _on_every_axis(x, (now[START], now[SIZE], now[STRIDE]), now[AXES])
        if not _is_inside(x, start, size, stride):
            return _sampled(x, start, size, stride, mode, optional[FILL - 1] if len(optional) >= FILL else None)
        if any(step <= 0 and count > 1 for step, count in zip(stride, size, strict=True)):
            return _indexed(x, start, size, stride)
        if len(views) == _MOST_VIEWS:
            views.clear()
        views[key] = view = tuple(map(_slice, start, size, stride))
        return x[view]

    return Lowered(run, is_view=True)


def _on_every_axis(
    x: Tensor, stated: tuple[tuple[int, ...] | None, ...], axes: tuple[int, ...] | None
) -> tuple[list[int], list[int], list[int]]:
    """Return start, size and stride for all axes of x; axes that are not listed are taken whole."""
    rank = x.dim()
    defaults = ([0] * rank, list(x.shape), [1] * rank)
    for whole, numbers in zip(defaults, stated, strict=True):
        if numbers is not None:
            for axis, item in zip(range(rank) if axes is None else axes, numbers, strict=True):
                whole[axis % rank] = item
    return defaults


def _is_inside(x: Tensor, start: list[int], size: list[int], stride: list[int]) -> bool:
    """Whether all elements of a slice are inside x."""
    for length, first, count, step in zip(x.shape, start, size, stride, strict=True):
        last = first + (count - 1) * step
        if count > 0 and not (min(first, last) >= 0 and max(first, last) < length):
            return False
    return True


def _slice(start: int, count: int, stride: int) -> slice:
    """Return a slice's positions along one axis, as a Python slice."""
    return slice(start, start + (count - 1) * stride + 1, max(stride, 1)) if count else slice(0, 0)


def _indexed(x: Tensor, start: list[int], size: list[int], stride: list[int]) -> Tensor:
    """Return the slice by indexing each axis, for backward or repeated positions."""
    for axis, (first, count, step) in enumerate(zip(start, size, stride, strict=True)):
        if (first, count, step) != (0, x.shape[axis], 1):
            x = x.index_select(axis, _positions(first, count, step, x.device))
    return x


def _positions(start: int, count: int, stride: int, device: torch.device) -> Tensor:
    """Return a slice's positions along one axis."""
    return start + stride * torch.arange(count, device=device)


def _sampled(
    x: Tensor, starts: list[int], counts: list[int], strides: list[int], mode: str, fill: Tensor | None
) -> Tensor:
    """Return a slice with positions outside, which the mode defines."""
    if mode == "STRICT_BOUNDS":
        raise IndexError(f"slice from {starts}, size {counts}, stride {strides} reaches outside {list(x.shape)}")
    if mode == "FILL" and all(step == 1 for step in strides):
        return _padded(x, starts, counts, fill)
    is_inside = torch.ones([], dtype=torch.bool, device=x.device)
    for axis, (start, count, stride) in enumerate(zip(starts, counts, strides, strict=True)):
        position = _positions(start, count, stride, x.device)
        length = x.shape[axis]
        valid = (position >= 0) & (position < length)
        is_inside = is_inside & valid.reshape(-1, *[1] * (x.dim() - axis - 1))
        x = x.index_select(axis, _wrapped(position, length, mode))
    if mode != "FILL":
        return x
    value = torch.zeros((), dtype=x.dtype, device=x.device) if fill is None else fill.reshape(())
    return torch.where(is_inside, x, value)


def _padded(x: Tensor, start: list[int], size: list[int], fill: Tensor | None) -> Tensor:
    """Return the slice with stride 1 by padding, negative where it trims."""
    amounts = []
    for axis in reversed(range(x.dim())):
        amounts += [-start[axis], start[axis] + size[axis] - x.shape[axis]]
    value = 0 if fill is None else fill.item()
    if x.dtype == torch.bool:
        return F.pad(x.to(torch.uint8), amounts, value=int(value)).bool()
    if isinstance(value, float) and not math.isfinite(value) and not x.is_floating_point():
        value = int(value)
    return F.pad(x, amounts, value=value)


def _wrapped(position: Tensor, length: int, mode: str) -> Tensor:
    """Return positions mapped into [0, length)."""
    if mode == "WRAP":
        return position % length
    if mode == "REFLECT":
        period = max(2 * (length - 1), 1)
        folded = position % period
        return torch.minimum(folded, period - folded) if length > 1 else torch.zeros_like(position)
    return position.clamp(0, max(length - 1, 0))


def gather(layer: Layer) -> Op:
    """Select elements by index: slices along an axis, single elements, or by index vectors (ONNX's three gathers).

    A negative index counts from the end. Out-of-range indices are an error here; TensorRT leaves them undefined.
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
    """Return indices with negative ones, which count from the end, made positive."""
    return torch.where(index < 0, index + length, index)


def _gather_batched(x: Tensor, index: Tensor, axis: int, batch_dims: int) -> Tensor:
    """Return slices along an axis; x and index share the first axes as batch axes."""
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
    """Return the elements addressed by index vectors along the last axis."""
    batch = x.shape[:batch_dims]
    columns, vectors = x.reshape(-1, *x.shape[batch_dims:]), index.reshape(-1, *index.shape[batch_dims:])
    depth = index.shape[-1]
    row = torch.arange(columns.shape[0], device=x.device).reshape(-1, *[1] * (vectors.dim() - 2))
    where = [_from_start(vectors[..., axis], columns.shape[axis + 1]) for axis in range(depth)]
    picked = columns[(row.expand(vectors.shape[:-1]), *where)]
    return picked.reshape(*batch, *index.shape[batch_dims:-1], *x.shape[batch_dims + depth :])


def scatter(layer: Layer) -> Op:
    """Copy data and overwrite the elements or slices at the indices; if several indices coincide, any may win."""
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


MAX_BYTES = 8 << 30
"""Size limit of tensors generated from numbers alone; a quarter of the machine's memory is another."""


def fill(layer: Layer) -> Op:
    """Return a tensor of the layer's shape or that of input 0.

    LINSPACE: alpha + beta[i] * position along each axis i. RANDOM_UNIFORM: from alpha to beta. RANDOM_NORMAL: mean
    alpha, deviation beta. Random values come from torch's generator, so `torch.manual_seed` reproduces them; they
    differ between libraries. Source: IFillLayer in NvInfer.h.
    """
    operation, dtype = layer.option("operation"), layer.output_dtype()
    stated = None if layer.has_input(0) else layer.ints("shape")
    device = layer.precision.device
    constants = (layer.attribute("alpha"), layer.attribute("beta"))

    def run(shape: Tensor | None = None, alpha: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
        wanted = list(stated) if stated is not None else sizes(shape)  # type: ignore[arg-type]
        _check_size(wanted, dtype, layer.name)
        first = constants[0] if alpha is None else alpha.item()
        if operation == "LINSPACE":
            deltas = [constants[1]] if beta is None else beta.reshape(-1).tolist()
            home = torch.device("cpu") if dtype in (torch.int32, torch.int64) and shape is not None else device
            return _ramp(wanted, first, deltas, torch.empty(0, dtype=dtype, device=home))
        second = constants[1] if beta is None else beta.item()
        wide = torch.empty(wanted, dtype=torch.float32, device=device)
        random = wide.uniform_(first, second) if operation == "RANDOM_UNIFORM" else wide.normal_(first, second)
        return random.to(dtype)

    return run


def _check_size(shape: list[int], dtype: torch.dtype, where: str) -> None:
    """Raise ExecutionError for a tensor that would fill the memory."""
    needed = math.prod(shape) * dtype.itemsize
    most = min(MAX_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    if needed > most:
        what = f"the FILL layer would make a tensor {shape} of {needed / 2**30:.1f} GiB"
        fix = "check the sizes that the network's inputs give this layer"
        raise ExecutionError(f"{what}; the reference executor makes none above {most / 2**30:.1f} GiB", where, fix)


def _ramp(shape: list[int], first: float, deltas: list[float], like: Tensor) -> Tensor:
    """Return first + the sum over axes of position times delta, in the type and on the device of `like`."""
    is_float = like.dtype.is_floating_point
    total = torch.full(shape, first if is_float else int(first), dtype=like.dtype, device=like.device)
    if len(deltas) < len(shape):
        deltas = deltas * len(shape)
    for axis, (size, delta) in enumerate(zip(shape, deltas, strict=False)):
        steps = torch.arange(size, dtype=like.dtype, device=like.device) * (delta if is_float else int(delta))
        total = total + steps.reshape(-1, *[1] * (len(shape) - axis - 1))
    return total
