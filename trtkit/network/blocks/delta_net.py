"""Gated delta nets: convolution, delta rule, gated norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.blocks.short_conv import convolution
from trtkit.network.ops.activation import activation, sigmoid, silu, softplus
from trtkit.network.ops.arithmetic import cast, select, sqrt, sum_over
from trtkit.network.ops.delta_rule import gated_delta_rule
from trtkit.network.ops.gather import reorder
from trtkit.network.ops.norm import rms_norm
from trtkit.network.ops.shape import concat, reshape, split, split_heads, transpose, unsqueeze

if TYPE_CHECKING:
    from trtkit.models.recurrent import DeltaNetSpec
    from trtkit.network.blocks.states import States
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor

_LEAST_LENGTH = 1e-6
"""What is added to a squared length, as HF's `l2norm` does."""


def delta_block(weights: Weights, x: Tensor, spec: DeltaNetSpec, states: States) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply a gated delta net to x [B, S, D]; return [B, S, D] and the updated states.

    Source: HF `Qwen3NextGatedDeltaNet` and, by channel, `KimiLinearDeltaAttention`. The rule and its state are in fp32,
    whatever the network's type.
    """
    with x.graph.scope("delta"):
        qkv, z, b, a = _project(weights, x, spec)
        convolved, conv = convolution(weights, qkv, states, has_bias=False)
        q, k, v = _heads(activation(convolved, spec.activation), spec)
        gates = _gates(weights, (a, b), spec, states)
        with x.graph.scope("rule"):
            masks = states.chunk.masks(x, has_levels=spec.is_by_channel)
            read, state = gated_delta_rule((q, k, v), gates, states.arrays["delta"], masks)
        y = _normed(weights, read, z, spec)
        return weights.linear("out", y, ranks=spec.share.count), {"conv": conv, "delta": state}


def _project(weights: Weights, x: Tensor, spec: DeltaNetSpec) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `[q | k | v]` [B, S, C], z [B, S, V * E], b [B, S, V], and a [B, S, V], or [B, S, V * D] by channel."""
    if spec.is_by_channel:
        qkv = concat([weights.linear(name, x) for name in "qkv"], axis=-1)
        z, a = (weights.linear(f"{name}_out", weights.linear(f"{name}_in", x)) for name in ("gate", "decay"))
        return qkv, z, weights.linear("b", x), a
    if not spec.is_grouped:
        qkv, z, b, a = (weights.linear(name, x) for name in ("qkv", "z", "b", "a"))
        return qkv, z, b, a
    K, V = spec.key_heads, spec.value_heads
    group = V // K
    values = group * spec.value_dim
    sizes = (spec.key_dim, spec.key_dim, values, values)
    q, k, v, z = _by_key_head(weights.linear("qkvz", x), K, sizes)
    b, a = _by_key_head(weights.linear("ba", x), K, (group, group))
    return concat([q, k, v], axis=-1), z, b, a


def _by_key_head(x: Tensor, heads: int, sizes: tuple[int, ...]) -> list[Tensor]:
    """Cut [B, S, heads * sum(sizes)], in which each head has all parts, into parts of all heads."""
    by_head = reshape(x, (0, 0, heads, sum(sizes)))
    return [reshape(part, (0, 0, heads * size)) for part, size in zip(split(by_head, 3, sizes), sizes, strict=True)]


def _heads(qkv: Tensor, spec: DeltaNetSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys [B, V, S, D], scaled and of length 1, and values [B, V, S, E], in fp32."""
    K, V = spec.key_heads, spec.value_heads
    parts = split(cast(qkv, FP32), -1, tuple(count * size for count, size in spec.channels))
    q, k, v = (split_heads(part, heads) for part, heads in zip(parts, (K, K, V), strict=True))
    q, k = (part / sqrt(unsqueeze(sum_over(part * part, 3), 3) + _LEAST_LENGTH) for part in (q, k))
    if K != V:
        order = np.repeat(np.arange(K), V // K)
        q, k = (reorder(part, order, axis=1) for part in (q, k))
    return q * spec.key_dim**-0.5, k, v


def _gates(weights: Weights, ab: tuple[Tensor, Tensor], spec: DeltaNetSpec, states: States) -> tuple[Tensor, Tensor]:
    """Return the decay's logarithm [B, V, S, 1 or D] and beta [B, V, S, 1] in fp32, both 0 for padding."""
    (a, b), graph = ab, weights.graph
    is_token = unsqueeze(states.chunk.is_token(a), 3)
    rate, bias = (np.asarray(weights.array(name)).astype(np.float32).reshape(1, 1, -1) for name in ("a_log", "dt_bias"))
    if spec.is_by_channel:
        own = spec.share.of(rate.shape[2])
        rate = np.repeat(rate[..., own.start : own.stop], spec.key_dim, axis=2)
    step = softplus(cast(a, FP32) + graph.constant(bias, "dt_bias"))
    decay = step * graph.constant(-np.exp(rate), "rate")
    by_head = (split_heads(gate, spec.value_heads) for gate in (decay, sigmoid(cast(b, FP32))))
    g, beta = (select(is_token, gate, 0.0) for gate in by_head)
    return g, beta


def _normed(weights: Weights, read: Tensor, z: Tensor, spec: DeltaNetSpec) -> Tensor:
    """Norm each head of what was read [B, V, S, E] and multiply it by its gates, z [B, S, V * E] -> [B, S, V * E]."""
    V, E = spec.value_heads, spec.value_dim
    gate = sigmoid if spec.is_by_channel else silu
    with z.graph.scope("norm"):
        normed = rms_norm(transpose(read, (0, 2, 1, 3)), cast(weights.get("weight", 4), FP32), spec.eps)
        gated = normed * gate(cast(reshape(z, (0, 0, V, E)), FP32))
        return cast(reshape(gated, (0, 0, V * E)), z.dtype)
