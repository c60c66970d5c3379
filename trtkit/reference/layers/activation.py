"""Activations, parametric ReLU, softmax and scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Lowered, Op, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Apply a function to each element; alpha and beta as `nvinfer1::ActivationType` says."""
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
    """Return the activation with its parameters filled in."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _ALPHA:
        one = _ALPHA[kind]
        return lambda x: one(x, alpha)
    both = _ALPHA_BETA[kind]
    return lambda x: both(x, alpha, beta)


def _overwriting(kind: str, alpha: float, beta: float) -> Callable[[Tensor], Tensor] | None:
    """Return the activation computed in its input's memory, where there is such a form."""
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
