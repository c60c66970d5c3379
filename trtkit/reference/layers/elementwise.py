"""Operations on one or two tensors element by element."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trtkit.reference.layer import Layer, Lowered, Op, Tensor
from trtkit.reference.layers.quantization import FP8_MAX, round_fp4

Binary = Callable[[Tensor, Tensor], Tensor]
Unary = Callable[[Tensor], Tensor]

# MAX and MIN give the number where one side is NaN: https://github.com/NVIDIA/TensorRT/issues/4758
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
    """Combine two tensors of one rank, sizes of 1 repeated. Whole numbers are divided towards zero, as in C++."""
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


# ROUND goes to the even neighbour; IsInf and IsNaN give booleans: `nvinfer1::UnaryOperation` in NvInfer.h.
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
    """Take elements of input 1 where the condition holds, of input 2 elsewhere."""
    return torch.where


_LIMITS = {"int32": (-2147483648, 2147483647), "int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7)}


def cast(layer: Layer) -> Lowered:
    """Convert to the output's type.

    Floats become whole numbers by dropping the fraction; those out of range become the nearest limit and NaN
    becomes 0, as NVIDIA GPUs convert (PTX ISA, `cvt`), where C++ and torch leave it undefined. fp8 and fp4 saturate.
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
