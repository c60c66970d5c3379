"""Sums over axes: products of matrices, reductions, softmax, normalization, sorting."""

from trtkit.dtypes import FP32, INT64
from trtkit.network.onnx.layers.layer import NotInOnnxError, OnnxLayer, Value


def matrix_multiply(layer: OnnxLayer) -> Value:
    """Multiply batches of matrices or vectors, transposed if the layer says so."""
    e, forms = layer.emitter, (layer.option("op0"), layer.option("op1"))
    sides = []
    for index, (form, axis) in enumerate(zip(forms, (-2, -1), strict=True)):
        value = layer.value(index)
        if form == "TRANSPOSE":
            rank = len(layer.input_shape(index))
            value = e.emit("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])
        sides.append(e.emit("Unsqueeze", value, e.constant([axis])) if form == "VECTOR" else value)
    product = e.emit("MatMul", *sides)
    axes = [axis for form, axis in zip(forms, (-2, -1), strict=True) if form == "VECTOR"]
    return e.emit("Squeeze", product, e.constant(axes)) if axes else product


def einsum(layer: OnnxLayer) -> Value:
    """Evaluate an einsum equation in at least fp32: ONNX's Einsum does not take bf16."""
    operands = [layer.widened(index) for index in range(len(layer.values))]
    return layer.narrowed(layer.emitter.emit("Einsum", *operands, equation=layer.option("equation")))


def reduce(layer: OnnxLayer) -> Value:
    """Reduce axes; an average of integers is truncated."""
    e, op, keeps = layer.emitter, layer.option("op"), int(layer.flag("keep_dims"))
    if not layer.axes():
        return e.emit("Identity", layer.value(0))
    axes = e.constant(layer.axes())
    if op == "AVG" and not layer.input().dtype.is_float:
        total = e.emit("ReduceSum", layer.value(0), axes, keepdims=keeps)
        count = e.emit("ReduceProd", e.emit("Gather", e.shape(layer.value(0)), axes), keepdims=0)
        return e.emit("Div", total, e.cast(count, layer.input().dtype))
    name = {"SUM": "ReduceSum", "AVG": "ReduceMean", "PROD": "ReduceProd", "MAX": "ReduceMax", "MIN": "ReduceMin"}[op]
    return e.emit(name, layer.value(0), axes, keepdims=keeps)


def cumulative(layer: OnnxLayer) -> Value:
    """Sum along an axis up to each element."""
    directions = {name: int(layer.flag(name)) for name in ("exclusive", "reverse")}
    return layer.emitter.emit("CumSum", layer.value(0), layer.scalar(1), **directions)


def top_k(layer: OnnxLayer) -> tuple[Value, ...]:
    """Return the k largest or smallest along one axis, sorted, and their indices."""
    e, (axis,) = layer.emitter, layer.axes()
    count = e.constant([layer.number("k")])
    if layer.has(1):
        count = e.emit("Reshape", layer.int64(1), e.constant([1]))
    is_max = int(layer.option("op") == "MAX")
    values, indices = e.emit_several(2, "TopK", layer.value(0), count, axis=axis, largest=is_max, sorted=1)
    return values, indices if layer.output(1).dtype == INT64 else e.cast(indices, layer.output(1).dtype)


def softmax(layer: OnnxLayer) -> Value:
    """Compute softmax along one axis, or over several axes together."""
    e, axes = layer.emitter, layer.axes()
    if len(axes) == 1:
        return e.emit("Softmax", layer.value(0), axis=axes[0])
    along, x = e.constant(axes), layer.widened()
    weights = e.emit("Exp", e.emit("Sub", x, e.emit("ReduceMax", x, along)))
    return layer.narrowed(e.emit("Div", weights, e.emit("ReduceSum", weights, along)))


def ragged_softmax(layer: OnnxLayer) -> Value:
    """Compute softmax over the first elements of each row of [Z, S]; the rest is zero."""
    e, x = layer.emitter, layer.widened()
    inside = e.emit("Less", e.ramp(e.size(x, 1)), layer.int64(1))
    weights = e.emit("Softmax", e.emit("Where", inside, x, layer.like(-float("inf"))), axis=-1)
    return layer.narrowed(e.emit("Where", inside, weights, layer.like(0)))


def normalization(layer: OnnxLayer) -> Value:
    """Compute (x - mean) / sqrt(variance + epsilon) * scale + bias in at least fp32; channels are grouped first."""
    e, x, groups, axes = layer.emitter, layer.widened(), layer.number("num_groups"), layer.axes()
    split = x
    if groups > 1:
        sizes = e.emit("Concat", e.shape(x, 0, 1), e.constant([groups, -1]), e.shape(x, 2), axis=0)
        split, axes = e.emit("Reshape", x, sizes), tuple(sorted({2, *(axis + 1 for axis in axes if axis > 1)}))
    along = e.constant(axes)
    centered = e.emit("Sub", split, e.emit("ReduceMean", split, along))
    variance = e.emit("ReduceMean", e.emit("Mul", centered, centered), along)
    deviation = e.emit("Sqrt", e.emit("Add", variance, layer.like(layer.real("epsilon"))))
    normal = e.emit("Div", centered, deviation)
    if groups > 1:
        normal = e.emit("Reshape", normal, e.shape(x))
    scaled = e.emit("Mul", normal, _by_channel(layer, 1))
    return layer.narrowed(e.emit("Add", scaled, _by_channel(layer, 2)))


def _by_channel(layer: OnnxLayer, index: int) -> Value:
    """Return scale or bias in at least fp32; a value per group is repeated for the group's channels."""
    e, value, shape = layer.emitter, layer.widened(index), layer.input_shape(index)
    value = e.cast(value, FP32) if layer.is_narrow() and not layer.is_narrow(index) else value
    if len(shape) < 2 or shape[1] in (1, layer.input_shape()[1]):
        return value
    if -1 in shape:
        raise NotInOnnxError(f"input {index} has no fixed shape")
    repeats = layer.static_size(0, 1) // shape[1]
    spread = e.emit("Expand", e.emit("Unsqueeze", value, e.constant([2])), e.constant([1, 1, repeats, *shape[2:]]))
    return e.emit("Reshape", spread, e.constant([shape[0], -1, *shape[2:]]))
