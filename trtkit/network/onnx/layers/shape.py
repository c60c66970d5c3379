"""Layers that rearrange and pick elements: shuffle, slice, gather, scatter, fill."""

import numpy as np

from trtkit.dtypes import FP32, INT64
from trtkit.network.onnx.layers.layer import NotInOnnxError, OnnxLayer, Value


def shuffle(layer: OnnxLayer) -> Value:
    """Transpose, reshape, transpose."""
    e, value, rank = layer.emitter, layer.value(0), len(layer.input_shape())
    value = _transposed(layer, value, "first_transpose", rank)
    sizes = layer.known(1) if layer.has(1) else layer.ints("reshape_dims")
    if not layer.has(1) and sizes is None:
        return _transposed(layer, value, "second_transpose", rank)
    keeps_zero = not layer.flag("zero_is_placeholder")
    if sizes is not None and keeps_zero and 0 in sizes:  # ONNX takes no -1 there, which then represents 0
        sizes = tuple(0 if size == -1 else size for size in sizes)
    shape = layer.vector(1) if sizes is None else e.constant(sizes)
    value = e.emit("Reshape", value, shape, allowzero=int(keeps_zero))
    return _transposed(layer, value, "second_transpose", len(layer.output_shape()))


def _transposed(layer: OnnxLayer, value: Value, attribute: str, rank: int) -> Value:
    order = (layer.ints(attribute) or tuple(range(rank)))[:rank]
    return value if order == tuple(range(rank)) else layer.emitter.emit("Transpose", value, perm=order)


def squeeze(layer: OnnxLayer) -> Value:
    """Remove axes of size 1: those listed in input 1, else those of the shape."""
    e = layer.emitter
    if layer.has(1):
        return e.emit("Squeeze", layer.value(0), layer.vector(1))
    axes = [axis for axis, size in enumerate(layer.input_shape()) if size == 1]
    return e.emit("Squeeze", layer.value(0), e.constant(axes))


def unsqueeze(layer: OnnxLayer) -> Value:
    """Insert axes of size 1."""
    return layer.emitter.emit("Unsqueeze", layer.value(0), layer.vector(1))


def shape(layer: OnnxLayer) -> Value:
    """Return sizes."""
    return layer.emitter.shape(layer.value(0))


def concatenation(layer: OnnxLayer) -> Value:
    """Join tensors along one axis."""
    return layer.emitter.emit("Concat", *layer.values, axis=layer.number("axis"))


def padding(layer: OnnxLayer) -> Value:
    """Pad the last two axes with zeros; negative padding trims."""
    e, rank = layer.emitter, len(layer.input_shape())
    before, after = layer.ints("pre_padding_nd") or (), layer.ints("post_padding_nd") or ()
    rest = (0,) * (rank - len(before))
    return e.emit("Pad", layer.value(0), e.constant((*rest, *before, *rest, *after)))


def reverse_sequence(layer: OnnxLayer) -> Value:
    """Reverse the first elements of each slice along the batch axis; ONNX's ReverseSequence does not take bf16."""
    axes = {"batch_axis": layer.number("batch_axis"), "time_axis": layer.number("sequence_axis")}
    if sorted(axes.values()) != [0, 1]:
        raise NotInOnnxError("ReverseSequence takes axes 0 and 1 only")
    return layer.narrowed(layer.emitter.emit("ReverseSequence", layer.widened(), layer.int64(1), **axes))


def one_hot(layer: OnnxLayer) -> Value:
    """Set on_value where the new axis equals the index; ONNX's OneHot counts negative indices from the end instead."""
    e, rank = layer.emitter, len(layer.output_shape())
    axis = layer.number("axis") % rank
    classes = e.ramp(e.emit("Squeeze", layer.vector(2)))
    others = [other for other in range(rank) if other != axis]
    classes = e.emit("Unsqueeze", classes, e.constant(others)) if others else classes
    is_class = e.emit("Equal", e.emit("Unsqueeze", layer.int64(0), e.constant([axis])), classes)
    off, on = (e.emit("Gather", layer.value(1), e.constant(index)) for index in (0, 1))
    return e.emit("Where", is_class, on, off)


def gather(layer: OnnxLayer) -> Value:
    """Pick elements by index."""
    batch_dims, mode, e = layer.number("num_elementwise_dims"), layer.option("mode"), layer.emitter
    if mode == "ND":
        return e.emit("GatherND", layer.value(0), layer.int64(1), batch_dims=batch_dims)
    if mode == "ELEMENT":
        return e.emit("GatherElements", layer.value(0), layer.value(1), axis=layer.number("axis"))
    if not batch_dims:
        return e.emit("Gather", layer.value(0), layer.value(1), axis=layer.number("axis"))
    if layer.number("axis") % len(layer.input_shape()) != batch_dims:
        raise NotInOnnxError("ONNX gathers batches along the first axis after theirs only")
    index = e.emit("Unsqueeze", layer.int64(1), e.constant([-1]))
    return e.emit("GatherND", layer.value(0), index, batch_dims=batch_dims)


def scatter(layer: OnnxLayer) -> Value:
    """Copy data and overwrite the indexed elements or slices."""
    data, index, updates = layer.value(0), layer.int64(1), layer.value(2)
    if layer.option("mode") == "ELEMENT":
        return layer.emitter.emit("ScatterElements", data, index, updates, axis=layer.number("axis"))
    return layer.emitter.emit("ScatterND", data, index, updates)


def non_zero(layer: OnnxLayer) -> Value:
    """Return the indices of nonzero elements, one row per axis."""
    indices = layer.emitter.emit("NonZero", layer.value(0))
    return indices if layer.output().dtype == INT64 else layer.emitter.cast(indices, layer.output().dtype)


_START, _SIZE, _STRIDE, _FILL, _AXES = 1, 2, 3, 4, 5
"""Input numbers of ISliceLayer::setInput."""
_ATTRIBUTES = {_START: "start", _SIZE: "shape", _STRIDE: "stride", _AXES: "axes"}
_BEFORE_FIRST = -(1 << 62)
"""End of a backward slice that includes the first element."""


def slice_layer(layer: OnnxLayer) -> Value:
    """Take `size` elements per axis from `start` in steps of `stride`, with Slice if it can express that."""
    known = {index: _known(layer, index) for index in _ATTRIBUTES}
    start, size, stride = (known[index] for index in (_START, _SIZE, _STRIDE))
    if stride is None and not layer.has(_STRIDE):
        stride = (1,) * len(layer.input_shape())
    is_strict = layer.option("mode") == "STRICT_BOUNDS"
    if not is_strict or stride is None or (layer.has(_AXES) and known[_AXES] is None):
        return _gathered(layer, known)
    e, axes = layer.emitter, known[_AXES] or tuple(range(len(stride)))
    if min(stride, default=1) > 0:
        first = e.constant(start) if start is not None else layer.vector(_START)
        count = e.constant(size) if size is not None else layer.vector(_SIZE)
        end = e.emit("Add", first, e.emit("Mul", count, e.constant(stride)))
        if start is not None and size is not None:
            end = e.constant(np.array(start) + np.array(size) * np.array(stride))
        return e.emit("Slice", layer.value(0), first, end, e.constant(axes), e.constant(stride))
    if start is None or size is None or 0 in stride:
        return _gathered(layer, known)
    ends = np.array(start) + np.array(size) * np.array(stride)
    ends = np.where((np.array(stride) < 0) & (ends < 0), _BEFORE_FIRST, ends)
    bounds = (e.constant(item) for item in (start, ends, axes, stride))
    return e.emit("Slice", layer.value(0), *bounds)


def _known(layer: OnnxLayer, index: int) -> tuple[int, ...] | None:
    """Return the known value of start, size, stride or axes, from the layer or a constant."""
    stated = layer.ints(_ATTRIBUTES[index])
    return layer.known(index) if stated is None else stated


def _gathered(layer: OnnxLayer, known: dict[int, tuple[int, ...] | None]) -> Value:
    """Take a slice with one index per axis: any stride, any sample mode."""
    e, rank, mode = layer.emitter, len(layer.input_shape()), layer.option("mode")
    axes = known[_AXES]
    if layer.has(_AXES) and axes is None:
        raise NotInOnnxError("its axes are known at run time only")
    value, inside = layer.value(0), []
    for number, stated in enumerate(range(rank) if axes is None else axes):
        axis = stated % rank
        first, step = (_item(layer, known, index, number, axis) for index in (_START, _STRIDE))
        count = _item(layer, known, _SIZE, number, axis)
        index = e.emit("Add", first, e.emit("Mul", e.ramp(count), step))
        length = e.size(layer.value(0), axis)
        if mode == "FILL":
            last = e.emit("Less", index, length)
            valid = e.emit("And", e.emit("Not", e.emit("Less", index, e.constant(0))), last)
            inside.append(e.emit("Reshape", valid, e.constant([-1, *[1] * (rank - axis - 1)])))
        value = e.emit("Gather", value, _wrapped(layer, index, length), axis=axis)
    if mode != "FILL":
        return value
    allowed = inside[0]
    for more in inside[1:]:
        allowed = e.emit("And", allowed, more)
    spec = layer.input()
    fill = layer.scalar(_FILL) if layer.has(_FILL) else e.cast(e.constant(0), spec.dtype)
    return e.emit("Where", allowed, value, fill)


def _item(layer: OnnxLayer, known: dict[int, tuple[int, ...] | None], index: int, number: int, axis: int) -> Value:
    """Return start, size or stride of one axis as a scalar; the whole axis by default."""
    e, numbers = layer.emitter, known[index]
    if numbers is not None:
        return e.constant(numbers[number])
    if layer.has(index):
        return e.emit("Gather", layer.vector(index), e.constant(number))
    return e.size(layer.value(0), axis) if index == _SIZE else e.constant(int(index == _STRIDE))


def _wrapped(layer: OnnxLayer, index: Value, length: Value) -> Value:
    """Return indices moved inside an axis by the sample mode; those to be filled are arbitrary."""
    e, mode, one = layer.emitter, layer.option("mode"), layer.emitter.constant(1)
    if mode == "STRICT_BOUNDS":
        return index
    if mode == "WRAP":
        return e.emit("Mod", index, length)
    last = e.emit("Sub", length, one)
    if mode == "REFLECT":
        period = e.emit("Max", e.emit("Mul", last, e.constant(2)), one)
        folded = e.emit("Mod", index, period)
        return e.emit("Min", folded, e.emit("Sub", period, folded))
    return e.emit("Min", e.emit("Max", index, e.constant(0)), e.emit("Max", last, e.constant(0)))


def fill(layer: OnnxLayer) -> Value:
    """Write a ramp, or random values, which differ between libraries."""
    e, operation = layer.emitter, layer.option("operation")
    stated = layer.known(0) if layer.has(0) else layer.ints("shape")
    sizes = layer.vector(0) if stated is None else e.constant(stated)
    if operation == "LINSPACE":
        return _ramp(layer, sizes)
    low, high = (e.cast(_number(layer, index), FP32) for index in (1, 2))
    zeros = e.cast(e.emit("ConstantOfShape", sizes), FP32)
    random = e.emit("RandomUniformLike" if operation == "RANDOM_UNIFORM" else "RandomNormalLike", zeros)
    factor = e.emit("Sub", high, low) if operation == "RANDOM_UNIFORM" else high
    return e.cast(e.emit("Add", e.emit("Mul", random, factor), low), layer.output().dtype)


def _ramp(layer: OnnxLayer, sizes: Value) -> Value:
    """Return alpha + the sum over axes of index times beta; a single beta applies to all axes."""
    e, dtype, rank = layer.emitter, layer.output().dtype, len(layer.output_shape())
    total = e.emit("Expand", e.cast(_number(layer, 1), dtype), sizes)
    delta = e.emit("Reshape", e.cast(_number(layer, 2), dtype), e.constant([-1]))
    betas = e.emit("Expand", delta, e.constant([rank]))
    for axis in range(rank):
        steps = e.cast(e.ramp(e.emit("Gather", sizes, e.constant(axis))), dtype)
        scaled = e.emit("Mul", steps, e.emit("Gather", betas, e.constant(axis)))
        column = e.emit("Reshape", scaled, e.constant([-1, *[1] * (rank - axis - 1)]))
        total = e.emit("Add", total, column)
    return total


def _number(layer: OnnxLayer, index: int) -> Value:
    """Return alpha (1) or beta (2) of a fill."""
    if layer.has(index):
        return layer.value(index)
    return layer.emitter.constant(layer.real("alpha" if index == 1 else "beta"), "float64")
