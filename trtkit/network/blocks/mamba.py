"""Mamba-2 layers: convolution, state space, gated norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.blocks.short_conv import convolution
from trtkit.network.ops.activation import activation, silu, softplus
from trtkit.network.ops.arithmetic import cast, maximum, select
from trtkit.network.ops.decay import decayed_sums, decays
from trtkit.network.ops.gather import reorder
from trtkit.network.ops.norm import rms_norm
from trtkit.network.ops.shape import merge_heads, reshape, split, split_heads, transpose, unsqueeze

if TYPE_CHECKING:
    from trtkit.models.recurrent import MambaSpec
    from trtkit.network.blocks.states import States
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def mamba_block(weights: Weights, x: Tensor, spec: MambaSpec, states: States) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply a Mamba-2 layer to x [B, S, D]; return [B, S, D] and the updated states.

    Source: HF `BambaMixer`. The recurrence and its state are in fp32, whatever the network's type.
    """
    with x.graph.scope("mamba"):
        H, P = spec.values
        sizes = [count * size for count, size in spec.channels]
        projected = _projected(weights, x, spec)
        z, channels, dt = split(projected, -1, (H * P, sum(sizes), H))
        convolved, conv = convolution(weights, channels, states, has_bias=spec.has_conv_bias)
        inner, b, c = split(cast(activation(convolved, spec.activation), FP32), -1, tuple(sizes))
        y, state = _recurrence(weights, (inner, b, c), dt, spec, states)
        y = _normed(weights, y, z, spec)
        out = weights.linear("out", y, has_bias=spec.has_output_bias, ranks=spec.share.count)
        return out, {"conv": conv, "ssm": state}


def _projected(weights: Weights, x: Tensor, spec: MambaSpec) -> Tensor:
    """Return z, x, b, c and dt [B, S, ...], each times its factor."""
    projected = weights.linear("in", x, has_bias=spec.has_bias)
    if set(spec.factors) == {1.0}:
        return projected
    factors = np.repeat(spec.factors, [count * size for count, size in spec.projected])
    return projected * x.graph.constant(factors.astype(np.float32)[None, None], "in/factors", x.dtype)


def _recurrence(
    weights: Weights, xbc: tuple[Tensor, Tensor, Tensor], dt: Tensor, spec: MambaSpec, states: States
) -> tuple[Tensor, Tensor]:
    """Return what each token reads [B, S, H * P] and the updated state [B, H, N, P], in fp32."""
    x = split_heads(xbc[0], spec.heads)
    b, c = (split_heads(part, spec.groups) for part in xbc[1:])
    if spec.groups != spec.heads:
        order = np.repeat(np.arange(spec.groups), spec.heads // spec.groups)
        b, c = (reorder(part, order, axis=1) for part in (b, c))
    step = softplus(cast(dt, FP32) + _by_head(weights, "dt_bias"))
    step = maximum(step, spec.least_step) if spec.least_step else step
    step = select(states.chunk.is_token(dt), transpose(step, (0, 2, 1)), 0.0)  # [B, H, S]
    rate = reshape(_by_head(weights, "a_log"), (1, spec.heads, 1))
    step, rate = unsqueeze(step, 3), unsqueeze(rate, 3)
    left = decays(step * rate, states.chunk.masks(dt))
    read, state = decayed_sums((c, b, x * step), left, states.arrays["ssm"])
    skip = reshape(_by_head(weights, "d"), (1, spec.heads, 1, 1))
    return merge_heads(read + x * skip), state


def _by_head(weights: Weights, name: str) -> Tensor:
    """Return a number of each head as [1, 1, H] in fp32; of `a_log`, the rate that it is the logarithm of, below 0."""
    array = np.asarray(weights.array(name)).astype(np.float32)[None, None]
    return weights.graph.constant(-np.exp(array) if name == "a_log" else array, name)


def _normed(weights: Weights, y: Tensor, z: Tensor, spec: MambaSpec) -> Tensor:
    """Multiply y [B, S, H * P] by silu(z), and norm the heads of each group together."""
    size, G = spec.heads * spec.head_dim, spec.groups
    with z.graph.scope("norm"):
        gate = silu(cast(z, FP32))
        y = y if spec.norm == "before_gate" else y * gate
        if spec.norm != "none":
            normed = rms_norm(reshape(y, (0, 0, G, size // G)), None, spec.eps)
            y = reshape(normed, (0, 0, size)) * cast(weights.get("weight", 3), FP32)
        return cast(y * gate if spec.norm == "before_gate" else y, z.dtype)
