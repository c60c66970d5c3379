"""Activation functions, by the names that Hugging Face configs use."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32
from trtkit.errors import NetworkError
from trtkit.network.ops.arithmetic import absolute, cast, exponential, logarithm, mean, minimum, select, sqrt
from trtkit.network.ops.collective import all_reduce

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.network.graph import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """Compute 1 / (1 + exp(-x))."""
    return _layer(x, "SIGMOID")


def tanh(x: Tensor) -> Tensor:
    """Compute the hyperbolic tangent."""
    return _layer(x, "TANH")


def relu(x: Tensor) -> Tensor:
    """Compute max(x, 0)."""
    return _layer(x, "RELU")


def gelu(x: Tensor) -> Tensor:
    """Compute x * Phi(x), exactly. Source: https://arxiv.org/abs/1606.08415."""
    return _layer(x, "GELU_ERF")


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute GELU by its tanh approximation."""
    return _layer(x, "GELU_TANH")


def silu(x: Tensor) -> Tensor:
    """Compute x * sigmoid(x)."""
    return x * sigmoid(x)


def squared_relu(x: Tensor) -> Tensor:
    """Compute max(x, 0) ** 2."""
    y = relu(x)
    return y * y


def softplus(x: Tensor) -> Tensor:
    """Compute log(1 + exp(x)), without overflow."""
    return relu(x) + logarithm(exponential(absolute(x) * -1.0) + 1.0)


def quick_gelu(x: Tensor) -> Tensor:
    """Compute x * sigmoid(1.702 x)."""
    return x * sigmoid(x * 1.702)


def xielu(x: Tensor, alpha_positive: float, alpha_negative: float, beta: float, eps: float) -> Tensor:
    """Compute a x^2 + beta x above 0, and b (exp(min(x, eps)) - 1 - x) + beta x below; in fp32. a, b: the alphas.

    Source: https://arxiv.org/abs/2411.13010, HF `XIELUActivation`.
    """
    x32 = cast(x, FP32)
    below = (exponential(minimum(x32, eps)) - 1.0 - x32) * alpha_negative
    return cast(select(x32 > 0.0, x32 * x32 * alpha_positive, below) + x32 * beta, x.dtype)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "swish": silu,
    "relu": relu,
    "relu2": squared_relu,
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "tanh": tanh,
    "sigmoid": sigmoid,
}


def largest_gates(x: Tensor, sparsity: float, ranks: int = 1) -> Tensor:
    """Return by how much x exceeds the quantile `sparsity` of a normal distribution of the last axis, or 0.

    ranks: how many hold equal parts of the axis; mean and variance are over all of them. Source: HF `Gemma3nTextMLP`.
    """

    def mean_of_all(y: Tensor) -> Tensor:
        return mean(y, axis=-1) if ranks == 1 else all_reduce(mean(y, axis=-1), ranks) / ranks

    wide = cast(x, FP32)
    centered = wide - mean_of_all(wide)
    deviation = sqrt(mean_of_all(centered * centered))
    return cast(relu(centered - deviation * NormalDist().inv_cdf(sparsity)), x.dtype)


def activation(x: Tensor, name: str) -> Tensor:
    """Apply the activation that a config names. Raises NetworkError for an unknown name."""
    if name not in ACTIVATIONS:
        raise NetworkError(f"unknown activation `{name}`", x.graph.path(), f"known: {', '.join(sorted(ACTIVATIONS))}")
    with x.graph.scope(name):
        return ACTIVATIONS[name](x)


def _layer(x: Tensor, kind: str) -> Tensor:
    graph = x.graph
    return graph.add(graph.network.add_activation(x.trt, getattr(graph.backend.trt.ActivationType, kind)), kind.lower())
