"""Mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trtkit.reference.layers.quantization import FP8_MAX

if TYPE_CHECKING:
    from trtkit.reference.layer import Layer, Op, Tensor


def mixture_of_experts(layer: Layer) -> Op:
    """Send each token through its experts' gated MLPs and add the results, weighted by the experts' scores.

    Inputs: hidden states [.., D], expert numbers [.., k], scores [.., k], gate and up weights [E, D, F], down weights
    [E, F, D], their biases [E, F], [E, F], [E, D], scale of the fp8 down activations. SwiGLU with parameters:
    silu(alpha * gate) / alpha * (up + beta), gate and up clamped to the limit. Source: IMoELayer in NvInfer.h.
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
