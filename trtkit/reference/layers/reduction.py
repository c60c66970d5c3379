"""Sums over axes: reductions, top-k, normalization, Einstein sums, mixtures of experts."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Lowered, Op, Tensor
from trtkit.reference.layers.quantization import FP8_MAX

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def reduce(layer: Layer) -> Op:
    """Reduce axes; integer sums keep their type, and integer averages truncate."""
    axes, keep, dtype = layer.axes(), layer.flag("keep_dims"), layer.input_dtype()
    reduction = _REDUCTIONS[layer.option("op")]
    if not axes:
        return lambda x: x.clone()
    return lambda x: reduction(x, axes, keep).to(dtype)


def _average(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.is_floating_point():
        return x.mean(axes, keep)
    total = x.sum(axes, keep)
    count = x.numel() // max(total.numel(), 1)
    return torch.div(total, count, rounding_mode="trunc")


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    """Return the product, in fp32 for narrower floats."""
    y = x.float() if x.is_floating_point() and x.dtype.itemsize < 4 else x
    for axis in sorted(axes, reverse=True):
        y = y.prod(axis, keep)
    return y


def _extreme(x: Tensor, axes: tuple[int, ...], keep: bool, is_max: bool) -> Tensor:
    """Return the maximum or minimum; for no elements, the lowest or highest value of the type."""
    if all(x.shape[axis] for axis in axes):
        return x.amax(axes, keep) if is_max else x.amin(axes, keep)
    limits = None if x.is_floating_point() else torch.iinfo(x.dtype)
    worst = limits.min if limits else -float("inf")
    best = limits.max if limits else float("inf")
    return x.new_full(x.sum(axes, keep).shape, worst if is_max else best)


_REDUCTIONS: dict[str, Reduction] = {
    "SUM": lambda x, axes, keep: x.sum(axes, keep, dtype=x.dtype),
    "AVG": _average,
    "PROD": _product,
    "MAX": lambda x, axes, keep: _extreme(x, axes, keep, True),
    "MIN": lambda x, axes, keep: _extreme(x, axes, keep, False),
}


def top_k(layer: Layer) -> Op:
    """Return the k largest or smallest along one axis, sorted, and their positions; ties keep their order."""
    (axis,) = layer.axes()
    is_max, stated = layer.option("op") == "MAX", layer.number("k")
    index_dtype = layer.output_dtype(1)

    def run(x: Tensor, k: Tensor | None = None) -> tuple[Tensor, Tensor]:
        count = stated if k is None else int(k)
        if count == 1:
            values, indices = x.max(axis, True) if is_max else x.min(axis, True)
        else:
            values, indices = torch.sort(x, dim=axis, descending=is_max, stable=True)
            values, indices = values.narrow(axis, 0, count), indices.narrow(axis, 0, count)
        return values, indices.to(index_dtype)

    return run


def cumulative(layer: Layer) -> Op:
    """Compute cumulative sums along an axis, in either direction, inclusive or exclusive."""
    is_exclusive, is_reverse, dtype = layer.flag("exclusive"), layer.flag("reverse"), layer.input_dtype()

    def run(x: Tensor, axis: Tensor) -> Tensor:
        along = int(axis) % x.dim()
        y = x.flip(along) if is_reverse else x
        wide = y.float() if x.is_floating_point() and x.dtype.itemsize < 4 else y
        total = wide.cumsum(along, dtype=wide.dtype)
        if is_exclusive:
            total = total.roll(1, along)
            total.narrow(along, 0, min(1, x.shape[along])).zero_()
        total = total.to(dtype)
        return total.flip(along) if is_reverse else total

    return run


def normalization(layer: Layer) -> Op:
    """Compute (x - mean) / sqrt(variance + epsilon) * scale + bias, with statistics in at least fp32.

    With groups, channels are split first. scale and bias broadcast to the input; [1, groups, 1, 1] is repeated over the
    channels of each group. Source: INormalizationLayer in NvInfer.h.
    """
    axes, epsilon = layer.axes(), layer.real("epsilon")
    groups, dtype = layer.number("num_groups"), layer.input_dtype()

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        wide = x.float() if dtype.itemsize < 4 else x
        weight, bias = weight.to(wide.dtype), bias.to(wide.dtype)
        if groups == 1 and _is_layer_norm(axes, x, weight, bias):
            shape = x.shape[axes[0] :]
            return F.layer_norm(wide, shape, weight.reshape(shape), bias.reshape(shape), epsilon).to(dtype)
        normal = _normalized(wide, axes, epsilon, groups)
        return (normal * _spread(weight, x) + _spread(bias, x)).to(dtype)

    return run


def _is_layer_norm(axes: tuple[int, ...], x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether torch's layer norm applies: the last axes, with one parameter per element of them."""
    return all(
        axes == tuple(range(x.dim() - len(axes), x.dim()))
        and parameter.shape[axes[0] - x.dim() :] == x.shape[axes[0] :]
        and parameter.numel() == x.shape[axes[0] :].numel()
        for parameter in (weight, bias)
    )


def _normalized(x: Tensor, axes: tuple[int, ...], epsilon: float, groups: int) -> Tensor:
    """Return x with zero mean and unit variance over axes, and over the channels of each group."""
    if groups == 1:
        variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + epsilon)
    split = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    inside = tuple({2, *(axis + 1 for axis in axes if axis > 1)})
    variance, mean = torch.var_mean(split, inside, correction=0, keepdim=True)
    return ((split - mean) * torch.rsqrt(variance + epsilon)).reshape(x.shape)


def _spread(parameter: Tensor, x: Tensor) -> Tensor:
    """Repeat one value per group over the group's channels."""
    channels = parameter.shape[1] if parameter.dim() > 1 else 1
    if channels in (1, x.shape[1]):
        return parameter
    return parameter.repeat_interleave(x.shape[1] // channels, 1)


def einsum(layer: Layer) -> Op:
    """Sum products by an Einstein equation, including ellipsis and repeated labels."""
    equation, dtype = layer.option("equation").replace(" ", ""), layer.input_dtype()
    compute = layer.precision.accumulation(dtype)
    return lambda *operands: torch.einsum(equation, *[item.to(compute) for item in operands]).to(dtype)


def constant(layer: Layer) -> Lowered:
    """Return the layer's weights in its shape, without a copy if the API exposes their memory."""
    shape = layer.ints("shape")
    assert shape is not None
    value = layer.weights("weights", layer.outputs[0].dtype)
    if value is None:
        value = torch.empty(0, dtype=layer.output_dtype(), device=layer.precision.device)
    fixed = value.reshape(shape)
    return Lowered(lambda: fixed, is_view=True)


def mixture_of_experts(layer: Layer) -> Op:
    """Send each token through its experts' gated MLPs and add the results, weighted by the experts' scores.

    Inputs: hidden states [.., D], expert numbers [.., k], scores [.., k], gate and up weights [E, D, F], down weights
    [E, F, D], their biases [E, F], [E, F], [E, D], scale of the fp8 down activations. SwiGLU with parameters:
    silu(alpha * gate) / alpha * (up + beta), with gate and up clamped to the limit. Source: IMoELayer in NvInfer.h.
    """
    dtype = layer.input_dtype()
    limit, alpha, beta = (layer.real(f"swiglu_param_{name}") for name in ("limit", "alpha", "beta"))
    has_silu = layer.option("activation_type") == "SILU"
    compute = layer.precision.accumulation(dtype)

    def expert(x: Tensor, weights: list[Tensor], biases: list[Tensor], scale: Tensor | None) -> Tensor:
        gate, up = x @ weights[0], x @ weights[1]
        if biases:
            gate, up = gate + biases[0], up + biases[1]
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        inner = (gate * torch.sigmoid(alpha * gate) if has_silu else gate) * (up + beta)
        if scale is not None:
            inner = (inner / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(inner.dtype) * scale
        down = inner @ weights[2]
        return down + biases[2] if biases else down

    def run(hidden: Tensor, chosen: Tensor, scores: Tensor, *parameters: Tensor | None) -> Tensor:
        weights = [item.to(compute) for item in parameters[:3] if item is not None]
        biases = [item.to(compute) for item in parameters[3:6] if item is not None]
        scale = parameters[6].to(compute) if len(parameters) > 6 and parameters[6] is not None else None
        tokens = hidden.reshape(-1, hidden.shape[-1]).to(compute)
        choice, weight = chosen.reshape(len(tokens), -1), scores.reshape(len(tokens), -1).to(compute)
        total = torch.zeros_like(tokens)
        for index in sorted(set(choice.reshape(-1).tolist())):
            token, column = (choice == index).nonzero(as_tuple=True)
            matrices = [item[index] for item in weights]
            result = expert(tokens[token], matrices, [item[index] for item in biases], scale)
            total.index_add_(0, token, result * weight[token, column].unsqueeze(1))
        return total.reshape(hidden.shape).to(dtype)

    return run
