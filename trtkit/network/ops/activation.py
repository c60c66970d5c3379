"""Activation functions, by the names that Hugging Face configs use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP32
from trtkit.errors import NetworkError
from trtkit.network.ops.arithmetic import cast, exponential, minimum, select

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


def quick_gelu(x: Tensor) -> Tensor:
    """Compute x * sigmoid(1.702 x)."""
    return x * sigmoid(x * 1.702)


def xielu(x: Tensor, alphas: tuple[float, float], beta: float, eps: float) -> Tensor:
    """Compute a x^2 + beta x above 0, and b (exp(min(x, eps)) - 1 - x) + beta x below; alphas: (a, b). In fp32.

    Source: https://arxiv.org/abs/2411.13010, HF `XIELUActivation`.
    """
    x32 = cast(x, FP32)
    below = (exponential(minimum(x32, eps)) - 1.0 - x32) * alphas[1]
    return cast(select(x32 > 0.0, x32 * x32 * alphas[0], below) + x32 * beta, x.dtype)


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


def activation(x: Tensor, name: str) -> Tensor:
    """Apply the activation that a config names. Raises NetworkError for an unknown name."""
    if name not in ACTIVATIONS:
        raise NetworkError(f"unknown activation `{name}`", x.graph.path(), f"known: {', '.join(sorted(ACTIVATIONS))}")
    with x.graph.scope(name):
        return ACTIVATIONS[name](x)


def _layer(x: Tensor, kind: str) -> Tensor:
    graph = x.graph
    return graph.add(graph.network.add_activation(x.trt, getattr(graph.backend.trt.ActivationType, kind)), kind.lower())
