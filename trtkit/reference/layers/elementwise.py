"""Element-wise operations, activations, softmax and scale."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Lowered, Op, Tensor
from trtkit.reference.layers.quantization import FP8_MAX, round_fp4

Binary = Callable[[Tensor, Tensor], Tensor]
Unary = Callable[[Tensor], Tensor]

# MAX and MIN return the number if one side is NaN: https://github.com/NVIDIA/TensorRT/issues/4758
_BINARY: dict[str, Binary] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "SUB": torch.sub,
    "MAX": torch.fmax,
    "MIN": torch.fmin,
    "POW": torch.pow,
    "DIV": torch.div,
    "FLOOR_DIV": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "AND": torch.logical_and,
    "OR": torch.logical_or,
    "XOR": torch.logical_xor,
    "EQUAL": torch.eq,
    "GREATER": torch.gt,
    "LESS": torch.lt,
}
_OVERWRITING: dict[str, Binary] = {
    "SUM": lambda a, b: a.add_(b),
    "PROD": lambda a, b: a.mul_(b),
    "SUB": lambda a, b: a.sub_(b),
    "DIV": lambda a, b: a.div_(b),
}


def elementwise(layer: Layer) -> Lowered:
    """Combine two tensors of the same rank, broadcasting sizes of 1. Integer division truncates, as in C++."""
    name = layer.option("op")
    function, dtype = _BINARY[name], layer.input_dtype()
    if name == "DIV" and not dtype.is_floating_point:
        return Lowered(lambda a, b: torch.div(a, b, rounding_mode="trunc"))
    if name == "POW" and dtype.itemsize < 4:
        return Lowered(lambda a, b: torch.pow(a.float(), b.float()).to(dtype))
    in_place = _OVERWRITING.get(name)
    if in_place is None:
        return Lowered(function)

    def overwrite(a: Tensor, b: Tensor) -> Tensor:
        fits = a.shape == b.shape or _contains(a.shape, b.shape)
        return in_place(a, b) if fits else function(a, b)

    return Lowered(function, overwrite)


def _contains(large: torch.Size, small: torch.Size) -> bool:
    """Whether a shape of the same rank broadcasts to `large`."""
    return len(large) == len(small) and all(b in (1, a) for a, b in zip(large, small, strict=True))


# ROUND rounds ties to even; IsInf and IsNaN return booleans: `nvinfer1::UnaryOperation` in NvInfer.h.
_UNARY: dict[str, Unary] = {
    "EXP": torch.exp,
    "LOG": torch.log,
    "SQRT": torch.sqrt,
    "RECIP": torch.reciprocal,
    "ABS": torch.abs,
    "NEG": torch.neg,
    "SIN": torch.sin,
    "COS": torch.cos,
    "TAN": torch.tan,
    "SINH": torch.sinh,
    "COSH": torch.cosh,
    "ASIN": torch.asin,
    "ACOS": torch.acos,
    "ATAN": torch.atan,
    "ASINH": torch.asinh,
    "ACOSH": torch.acosh,
    "ATANH": torch.atanh,
    "CEIL": torch.ceil,
    "FLOOR": torch.floor,
    "ERF": torch.erf,
    "NOT": torch.logical_not,
    "SIGN": torch.sign,
    "ROUND": torch.round,
    "ISINF": torch.isinf,
    "ISNAN": torch.isnan,
}


def unary(layer: Layer) -> Op:
    """Apply a function to each element."""
    return _UNARY[layer.option("op")]


def select(_layer: Layer) -> Op:
    """Take elements of input 1 where the condition is true, and of input 2 elsewhere."""
    return torch.where


_LIMITS = {"int32": (-2147483648, 2147483647), "int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7)}


def cast(layer: Layer) -> Lowered:
    """Convert to the output's type.

    Floats are truncated to integers; out-of-range values become the nearest limit and NaN becomes 0, as NVIDIA GPUs
    convert (PTX ISA, `cvt`), whereas C++ and torch leave it undefined. fp8 and fp4 saturate.
    """
    source, target = layer.input_dtype(), layer.output_dtype()
    name = layer.outputs[0].dtype.name
    if name == "fp4":
        return Lowered(lambda x: round_fp4(x.float()).to(target))
    if name == "fp8" and source.is_floating_point:
        return Lowered(lambda x: x.clamp(-FP8_MAX, FP8_MAX).to(target))
    if not source.is_floating_point or target.is_floating_point or target == torch.bool:
        return Lowered(lambda x: x.to(target), is_view=True)
    if name not in _LIMITS:
        return Lowered(lambda x: x.nan_to_num(0.0, 2.0**62, -(2.0**62)).to(target))
    low, high = _LIMITS[name]
    return Lowered(lambda x: x.double().nan_to_num(0.0).clamp_(low, high).to(target))


# Formulas: `nvinfer1::ActivationType` in NvInfer.h.
_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "RELU": F.relu,
    "SIGMOID": torch.sigmoid,
    "TANH": torch.tanh,
    "SOFTSIGN": lambda x: x / (1 + x.abs()),
    "GELU_ERF": F.gelu,
    "GELU_TANH": lambda x: F.gelu(x, approximate="tanh"),
}
_ALPHA: dict[str, Callable[[Tensor, float], Tensor]] = {
    "LEAKY_RELU": F.leaky_relu,
    "ELU": F.elu,
    "THRESHOLDED_RELU": lambda x, alpha: torch.where(x > alpha, x, torch.zeros_like(x)),
}
_ALPHA_BETA: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "SELU": lambda x, alpha, beta: beta * torch.where(x > 0, x, alpha * torch.expm1(x)),
    "SOFTPLUS": lambda x, alpha, beta: alpha * F.softplus(beta * x, threshold=40.0),
    "CLIP": lambda x, alpha, beta: torch.clamp(x, alpha, beta) if alpha <= beta else torch.full_like(x, alpha),
    "HARD_SIGMOID": lambda x, alpha, beta: (alpha * x + beta).clamp_(0, 1),
    "SCALED_TANH": lambda x, alpha, beta: alpha * torch.tanh(beta * x),
}
_ROUNDS_MORE_THAN_ONCE = ("SOFTSIGN", "SELU", "SOFTPLUS", "HARD_SIGMOID", "SCALED_TANH")


def activation(layer: Layer) -> Lowered:
    """Apply a function to each element, with alpha and beta as in `nvinfer1::ActivationType`."""
    kind, dtype = layer.option("type"), layer.input_dtype()
    alpha, beta = layer.real("alpha"), layer.real("beta")
    if kind == "CLIP" and not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        alpha, beta = int(max(alpha, limits.min)), int(min(beta, limits.max))
    elif kind == "CLIP":  # bounds beyond the type's range bound nothing
        alpha, beta = (float(torch.tensor(bound).to(dtype)) for bound in (alpha, beta))
    function = _function(kind, alpha, beta)
    if dtype.itemsize < 4 and kind in _ROUNDS_MORE_THAN_ONCE:
        return Lowered(lambda x: function(x.float()).to(dtype))
    return Lowered(function, _overwriting(kind, alpha, beta))


def _function(kind: str, alpha: float, beta: float) -> Callable[[Tensor], Tensor]:
    """Return the activation with its parameters bound."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _ALPHA:
        one = _ALPHA[kind]
        return lambda x: one(x, alpha)
    both = _ALPHA_BETA[kind]
    return lambda x: both(x, alpha, beta)


def _overwriting(kind: str, alpha: float, beta: float) -> Callable[[Tensor], Tensor] | None:
    """Return the activation computed in its input's memory, if it has such a form."""
    if kind == "CLIP" and alpha <= beta:
        return lambda x: x.clamp_(alpha, beta)
    if kind == "LEAKY_RELU":
        return lambda x: F.leaky_relu_(x, alpha)
    return {"RELU": torch.relu_, "SIGMOID": torch.sigmoid_, "TANH": torch.tanh_}.get(kind)


def parametric_relu(_layer: Layer) -> Op:
    """Multiply negative elements by slopes that broadcast to the input."""
    return lambda x, slope: torch.where(x >= 0, x, x * slope)


def softmax(layer: Layer) -> Op:
    """Normalize exponentials along one axis, or along several together."""
    axes = layer.axes()
    if len(axes) == 1:
        return lambda x: torch.softmax(x, axes[0])

    def run(x: Tensor) -> Tensor:
        weights = torch.exp(x - x.amax(axes, keepdim=True))
        return weights / weights.sum(axes, keepdim=True)

    return run


def ragged_softmax(_layer: Layer) -> Op:
    """Take the softmax of the first `bounds[z]` elements of each row of [Z, S]; the rest is zero."""

    def run(x: Tensor, bounds: Tensor) -> Tensor:
        is_inside = torch.arange(x.shape[-1], device=x.device) < bounds
        weights = torch.softmax(x.masked_fill(~is_inside, -float("inf")), -1)
        return weights.masked_fill(~is_inside, 0)

    return run


def scale(layer: Layer) -> Lowered:
    """Compute (x * scale + shift) ** power with one value per tensor, channel or element."""
    mode, axis = layer.option("mode"), layer.number("channel_axis")
    rank = len(layer.input_shape(0))
    shape = tuple(layer.input_shape(0))

    def parameter(name: str) -> Tensor | None:
        value = layer.weights(name)
        if value is None or mode == "UNIFORM":
            return value
        if mode == "CHANNEL":
            return value.reshape(-1, *[1] * (rank - axis - 1))
        return value.reshape(shape[axis:])

    factor, shift, power = parameter("scale"), parameter("shift"), parameter("power")
    if power is not None and bool((power == 1).all()):
        power = None
    dtype = layer.input_dtype()

    def run(x: Tensor) -> Tensor:
        y = x.to(layer.precision.accumulation(dtype))
        y = y if factor is None else y * factor
        y = y if shift is None else y + shift
        return (y if power is None else y.pow(power)).to(dtype)

    if power is None and factor is not None and shift is not None and dtype.itemsize >= 4:
        return Lowered(
            lambda x: torch.addcmul(shift, x, factor),
            lambda x: x.mul_(factor).add_(shift),
        )
    return Lowered(run, is_view=True)
