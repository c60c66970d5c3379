"""Element-wise layers: activations, arithmetic, casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto

from trtkit.dtypes import BOOL, FP32

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.network.onnx.layers.layer import OnnxLayer, Value

# Attributes: none, the layer's alpha, or alpha and beta, by ONNX's names.
_ACTIVATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "RELU": ("Relu", ()),
    "SIGMOID": ("Sigmoid", ()),
    "TANH": ("Tanh", ()),
    "SOFTSIGN": ("Softsign", ()),
    "LEAKY_RELU": ("LeakyRelu", ("alpha",)),
    "ELU": ("Elu", ("alpha",)),
    "THRESHOLDED_RELU": ("ThresholdedRelu", ("alpha",)),
    "SELU": ("Selu", ("alpha", "gamma")),
    "HARD_SIGMOID": ("HardSigmoid", ("alpha", "beta")),
}
_GELU = {"GELU_ERF": "none", "GELU_TANH": "tanh"}
_INNER = {"SOFTPLUS": "Softplus", "SCALED_TANH": "Tanh"}


def activation(layer: OnnxLayer) -> Value:
    """Apply a function to each element."""
    kind, alpha, beta, e = layer.option("type"), layer.real("alpha"), layer.real("beta"), layer.emitter
    if kind in _GELU:
        return e.emit("Gelu", layer.value(0), approximate=_GELU[kind])
    if kind == "CLIP":
        return _clip(layer, alpha, beta)
    if kind in _INNER:  # alpha * f(beta * x)
        inner = e.emit(_INNER[kind], e.emit("Mul", layer.widened(), layer.like(beta)))
        return layer.narrowed(e.emit("Mul", inner, layer.like(alpha)))
    op, names = _ACTIVATIONS[kind]
    return e.emit(op, layer.value(0), **dict(zip(names, (alpha, beta), strict=False)))


def _clip(layer: OnnxLayer, low: float, high: float) -> Value:
    """Clamp to [low, high]; to `low` if it is above `high`, while ONNX's Clip returns `high`."""
    dtype = layer.input().dtype
    if not dtype.is_float:
        most = (1 << (dtype.bits - 1)) - 1
        low, high = max(low, -most - 1), min(high, most)
    bounds = [layer.emitter.cast(layer.like(bound), dtype) for bound in (low, max(low, high))]
    if low > high:
        bounds[1] = bounds[0]
    return layer.emitter.emit("Clip", layer.value(0), *bounds)


_BINARY = {
    "SUM": "Add",
    "PROD": "Mul",
    "SUB": "Sub",
    "POW": "Pow",
    "DIV": "Div",
    "AND": "And",
    "OR": "Or",
    "XOR": "Xor",
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "LESS": "Less",
}


def elementwise(layer: OnnxLayer) -> Value:
    """Combine two tensors."""
    op = layer.option("op")
    if op == "FLOOR_DIV":
        return _floor_div(layer)
    if op in ("MAX", "MIN"):
        return _extreme(layer, op.capitalize())
    if op == "POW" and layer.is_narrow():
        return layer.narrowed(layer.emitter.emit("Pow", layer.widened(0), layer.widened(1)))
    return layer.emitter.emit(_BINARY[op], layer.value(0), layer.value(1))


def _extreme(layer: OnnxLayer, op: str) -> Value:
    """Return the larger or smaller element, or the number if one is NaN: ONNX's Max and Min may return NaN."""
    first, second, e = layer.value(0), layer.value(1), layer.emitter
    if not layer.input().dtype.is_float:
        return e.emit(op, first, second)
    without = [
        e.emit("Where", e.emit("IsNaN", value), other, value) for value, other in ((first, second), (second, first))
    ]
    return e.emit(op, *without)


def _floor_div(layer: OnnxLayer) -> Value:
    """Divide and round down; for floats, so that the remainder has the divisor's sign."""
    first, second, e = layer.widened(0), layer.widened(1), layer.emitter
    zero, is_float = layer.like(0), layer.input().dtype.is_float
    rest = e.emit("Mod", first, second, fmod=1) if is_float else e.emit("Mod", first, second)
    if not is_float:  # the remainder has the divisor's sign, so the difference is a multiple
        return e.emit("Div", e.emit("Sub", first, rest), second)
    differs = e.emit("Xor", e.emit("Less", rest, zero), e.emit("Less", second, zero))
    is_over = e.emit("And", e.emit("Not", e.emit("Equal", rest, zero)), differs)
    exact = e.emit("Round", e.emit("Div", e.emit("Sub", first, rest), second))
    rounded = e.emit("Where", is_over, e.emit("Sub", exact, layer.like(1)), exact)
    return layer.narrowed(e.emit("Where", e.emit("Equal", second, zero), e.emit("Div", first, second), rounded))


_UNARY = {
    "RECIP": "Reciprocal",
    "ISINF": "IsInf",
    "ISNAN": "IsNaN",
    **{
        name: name.capitalize()
        for name in (
            *("EXP", "LOG", "SQRT", "ABS", "NEG", "SIN", "COS", "TAN", "SINH", "COSH", "ASIN", "ACOS", "ATAN"),
            *("ASINH", "ACOSH", "ATANH", "CEIL", "FLOOR", "ERF", "NOT", "SIGN", "ROUND"),
        )
    },
}


def unary(layer: OnnxLayer) -> Value:
    """Apply a function to each element."""
    return layer.emitter.emit(_UNARY[layer.option("op")], layer.value(0))


def select(layer: OnnxLayer) -> Value:
    """Take elements of input 1 where the condition holds, of input 2 elsewhere."""
    return layer.emitter.emit("Where", *layer.values)


def parametric_relu(layer: OnnxLayer) -> Value:
    """Multiply negative elements by slopes."""
    return layer.emitter.emit("PRelu", *layer.values)


_LIMITS = {"int32": 2.0**31, "int64": 2.0**62, "int8": 2.0**7, "uint8": 2.0**8, "int4": 2.0**3}


def cast(layer: OnnxLayer) -> Value:
    """Convert to the output's type.

    ONNX does not define casts of floats outside an integer type's range: here they become the nearest limit, and NaN
    becomes 0, as on NVIDIA's GPUs.
    """
    e, source, target = layer.emitter, layer.input().dtype, layer.output().dtype
    if source == target:
        return e.emit("Identity", layer.value(0))
    if not source.is_float or target.is_float or target == BOOL:
        return e.cast(layer.value(0), target)
    limit, x = _LIMITS[target.name], e.emit("Cast", layer.value(0), to=TensorProto.DOUBLE)
    high = limit if target.name == "int64" else limit - 1
    bounds = (e.constant(0 if target.name == "uint8" else -limit, "float64"), e.constant(high, "float64"))
    number = e.emit("Where", e.emit("IsNaN", x), e.constant(0, "float64"), x)
    return e.cast(e.emit("Clip", number, *bounds), target)


def scale(layer: OnnxLayer) -> Value:
    """Compute (x * scale + shift) ** power with one value per tensor, channel or element."""
    mode, axis, shape = layer.option("mode"), layer.number("channel_axis"), layer.input_shape()
    counts = {name: held.count for name, held in layer.node.weights.items()}
    ranks = {"UNIFORM": lambda _: [], "CHANNEL": lambda count: [count, *[1] * (len(shape) - axis - 1)]}
    form: Callable[[int], list[int]] = ranks.get(mode, lambda _: list(shape[axis:]))
    value = layer.widened()
    dtype = FP32 if layer.is_narrow() else layer.input().dtype
    for name, op in (("scale", "Mul"), ("shift", "Add"), ("power", "Pow")):
        if counts.get(name):
            value = layer.emitter.emit(op, value, layer.weights(name, form(counts[name]), dtype))
    return layer.narrowed(value)
