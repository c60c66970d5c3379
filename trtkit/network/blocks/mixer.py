"""Mixers, which combine the tokens of a sequence: attention, gated delta nets, Mamba-2, gated short convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.models.recurrent import ConvSpec, DeltaNetSpec
from trtkit.network.blocks.attention import attention_block
from trtkit.network.ops.activation import activation, sigmoid, silu, softplus
from trtkit.network.ops.arithmetic import cast, maximum, select, sqrt, sum_over
from trtkit.network.ops.gather import reorder
from trtkit.network.ops.norm import rms_norm
from trtkit.network.ops.recurrence import causal_convolution, decayed_sums, decays, gated_delta_rule, last_tokens
from trtkit.network.ops.shape import concat, merge_heads, reshape, split, split_heads, transpose, unsqueeze

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.models.recurrent import MambaSpec, RecurrentSpec
    from trtkit.models.spec import LayerSpec
    from trtkit.network.blocks.attention import Encoded
    from trtkit.network.blocks.cache import Positions, Reach, States
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


@dataclass(frozen=True, eq=False)
class Attending:
    """What attention reads in addition to hidden states, for each of the call's groups of rows.

    encoded: an encoder's output, if the layer reads one. states: of a recurrent mixer in the same layer.
    """

    positions: Positions
    reaches: tuple[Reach, ...]
    encoded: tuple[Encoded, ...] = ()
    states: tuple[States, ...] = ()


Memory = Attending | tuple["States", ...]
"""What a layer's mixer reads in addition to hidden states. States: of each of the call's groups of rows."""


def mixer_block(weights: Weights, x: Tensor, layer: LayerSpec, memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply a layer's mixer to x [B, S, D]; return [B, S, D], and the updated caches or states by name."""
    if not isinstance(memory, Attending):
        assert layer.recurrent is not None
        return _recurrent_block(weights, x, layer.recurrent, memory)
    parallel = layer.parallel_mixer
    if parallel is None:
        return attention_block(weights, x, layer.attention, memory.positions, memory.reaches)
    (before, after), (mixer_before, mixer_after) = parallel.attention_factors, parallel.factors
    attended, caches = attention_block(weights, _times(x, before), layer.attention, memory.positions, memory.reaches)
    y, states = _recurrent_block(weights, _times(x, mixer_before), parallel.mixer, memory.states)
    return _times(attended, after) + _times(y, mixer_after), caches | states


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _recurrent_block(
    weights: Weights, x: Tensor, spec: RecurrentSpec, groups: tuple[States, ...]
) -> tuple[Tensor, dict[str, Tensor]]:
    if isinstance(spec, ConvSpec):
        return conv_block(weights, x, spec, groups)
    if isinstance(spec, DeltaNetSpec):
        return delta_block(weights, x, spec, groups)
    return mamba_block(weights, x, spec, groups)


def _by_rows(
    groups: tuple[States, ...],
    vectors: tuple[Tensor, ...],
    recurrence: Callable[..., tuple[Tensor, dict[str, Tensor]]],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply a recurrence to each group of rows: unlike the rest of a layer, it combines tokens.

    vectors: of all of the call's tokens, [B, S, C]; `recurrence` takes those of a group, and its states. Returns the
    outputs of all tokens [B, S, C'], and the updated states by name.
    """
    parts: list[Tensor] = []
    updated: dict[str, Tensor] = {}
    for states in groups:
        part, new = recurrence(*(states.rows.tokens(vector) for vector in vectors), states)
        parts.append(states.rows.by_token(part))
        updated |= {f"{states.rows.prefix}{name}": state for name, state in new.items()}
    return concat(parts, 0), updated


_LEAST_LENGTH = 1e-6
"""Epsilon added to a squared length, as in HF's `l2norm`."""


def delta_block(
    weights: Weights, x: Tensor, spec: DeltaNetSpec, groups: tuple[States, ...]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply a gated delta net to x [B, S, D]; return [B, S, D] and the updated states.

    Source: HF `Qwen3NextGatedDeltaNet` and, by channel, `KimiLinearDeltaAttention`. The rule and its state are in fp32,
    whatever the network's type.
    """
    with x.graph.scope("delta"):
        qkv, z, b, a = _project(weights, x, spec)
        read, updated = _by_rows(groups, (qkv, a, b), partial(_delta, weights, spec))
        y = _normed(weights, read, z, spec)
        return weights.linear("out", y, ranks=spec.share.count), updated


def _delta(
    weights: Weights, spec: DeltaNetSpec, qkv: Tensor, a: Tensor, b: Tensor, states: States
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return each token's output [B, S, V * E] in fp32, and the updated states. qkv, a, b: see `_project`."""
    convolved, conv = convolution(weights, qkv, states, has_bias=False)
    q, k, v = _heads(activation(convolved, spec.activation), spec)
    g, beta = _gates(weights, a, b, spec, states)
    with qkv.graph.scope("rule"):
        masks = states.chunk.masks(qkv, has_levels=spec.is_by_channel)
        read, state = gated_delta_rule((q, k, v), g, beta, states.arrays["delta"], masks)
    return merge_heads(read), {"conv": conv, "delta": state}


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
    """Split [B, S, heads * sum(sizes)], in which each head has all parts, into parts of all heads."""
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


def _gates(weights: Weights, a: Tensor, b: Tensor, spec: DeltaNetSpec, states: States) -> tuple[Tensor, Tensor]:
    """Return the decay's logarithm [B, V, S, 1 or D] and beta [B, V, S, 1] in fp32, both 0 for padding."""
    graph = weights.graph
    is_token = unsqueeze(states.chunk.is_token(a), 3)
    rate, bias = (np.asarray(weights.array(name)).astype(np.float32).reshape(1, 1, -1) for name in ("a_log", "dt_bias"))
    if spec.is_by_channel:
        heads = spec.share.of(rate.shape[2])
        rate = np.repeat(rate[..., heads.start : heads.stop], spec.key_dim, axis=2)
    step = softplus(cast(a, FP32) + graph.constant(bias, "dt_bias"))
    decay = step * graph.constant(-np.exp(rate), "rate")
    by_head = (split_heads(gate, spec.value_heads) for gate in (decay, sigmoid(cast(b, FP32))))
    g, beta = (select(is_token, gate, 0.0) for gate in by_head)
    return g, beta


def _normed(weights: Weights, read: Tensor, z: Tensor, spec: DeltaNetSpec) -> Tensor:
    """Normalize each head of the outputs [B, S, V * E] and multiply it by its gates, z [B, S, V * E]."""
    V, E = spec.value_heads, spec.value_dim
    gate = sigmoid if spec.is_by_channel else silu
    with z.graph.scope("norm"):
        normed = rms_norm(reshape(read, (0, 0, V, E)), cast(weights.get("weight", 4), FP32), spec.eps)
        gated = normed * gate(cast(reshape(z, (0, 0, V, E)), FP32))
        return cast(reshape(gated, (0, 0, V * E)), z.dtype)


def mamba_block(
    weights: Weights, x: Tensor, spec: MambaSpec, groups: tuple[States, ...]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply a Mamba-2 layer to x [B, S, D]; return [B, S, D] and the updated states.

    Source: HF `BambaMixer`. The recurrence and its state are in fp32, whatever the network's type.
    """
    with x.graph.scope("mamba"):
        H, P = spec.values
        projected = _projected(weights, x, spec)
        z, channels, dt = split(projected, -1, (H * P, sum(_channel_sizes(spec)), H))
        y, updated = _by_rows(groups, (channels, dt), partial(_mamba, weights, spec))
        y = _mamba_normed(weights, y, z, spec)
        return weights.linear("out", y, has_bias=spec.has_output_bias, ranks=spec.share.count), updated


def _channel_sizes(spec: MambaSpec) -> tuple[int, ...]:
    """Return how many channels x, b and c have."""
    return tuple(count * size for count, size in spec.channels)


def _mamba(
    weights: Weights, spec: MambaSpec, channels: Tensor, dt: Tensor, states: States
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return each token's output [B, S, H * P] in fp32, and the updated states. channels: x, b and c."""
    convolved, conv = convolution(weights, channels, states, has_bias=spec.has_conv_bias)
    x, b, c = split(cast(activation(convolved, spec.activation), FP32), -1, _channel_sizes(spec))
    y, state = _recurrence(weights, x, b, c, dt, spec, states)
    return y, {"conv": conv, "ssm": state}


def _projected(weights: Weights, x: Tensor, spec: MambaSpec) -> Tensor:
    """Return z, x, b, c and dt [B, S, ...], each times its factor."""
    projected = weights.linear("in", x, has_bias=spec.has_bias)
    if set(spec.factors) == {1.0}:
        return projected
    factors = np.repeat(spec.factors, [count * size for count, size in spec.projected])
    return projected * x.graph.constant(factors.astype(np.float32)[None, None], "in/factors", x.dtype)


def _recurrence(
    weights: Weights, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, spec: MambaSpec, states: States
) -> tuple[Tensor, Tensor]:
    """Return each token's output [B, S, H * P] and the updated state [B, H, N, P], in fp32."""
    x = split_heads(x, spec.heads)
    b, c = (split_heads(part, spec.groups) for part in (b, c))
    if spec.groups != spec.heads:
        order = np.repeat(np.arange(spec.groups), spec.heads // spec.groups)
        b, c = (reorder(part, order, axis=1) for part in (b, c))
    step = softplus(cast(dt, FP32) + _by_head(weights, "dt_bias"))
    step = maximum(step, spec.min_step) if spec.min_step else step
    step = select(states.chunk.is_token(dt), transpose(step, (0, 2, 1)), 0.0)  # [B, H, S]
    rate = reshape(_by_head(weights, "a_log"), (1, spec.heads, 1))
    step, rate = unsqueeze(step, 3), unsqueeze(rate, 3)
    left = decays(step * rate, states.chunk.masks(dt))
    read, state = decayed_sums((c, b, x * step), left, states.arrays["ssm"])
    skip = reshape(_by_head(weights, "d"), (1, spec.heads, 1, 1))
    return merge_heads(read + x * skip), state


def _by_head(weights: Weights, name: str) -> Tensor:
    """Return a value per head as [1, 1, H] in fp32; for `a_log`, the negative rate -exp(a_log)."""
    array = np.asarray(weights.array(name)).astype(np.float32)[None, None]
    return weights.graph.constant(-np.exp(array) if name == "a_log" else array, name)


def _mamba_normed(weights: Weights, y: Tensor, z: Tensor, spec: MambaSpec) -> Tensor:
    """Multiply y [B, S, H * P] by silu(z), and normalize each group of heads."""
    size, G = spec.heads * spec.head_dim, spec.groups
    with z.graph.scope("norm"):
        gate = silu(cast(z, FP32))
        y = y if spec.norm == "before_gate" else y * gate
        if spec.norm != "none":
            normed = rms_norm(reshape(y, (0, 0, G, size // G)), None, spec.eps)
            y = reshape(normed, (0, 0, size)) * cast(weights.get("weight", 3), FP32)
        return cast(y * gate if spec.norm == "before_gate" else y, z.dtype)


def conv_block(
    weights: Weights, x: Tensor, spec: ConvSpec, groups: tuple[States, ...]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute `out(c * conv(b * x))` of x [B, S, D]; return [B, S, D] and the updated states."""
    with x.graph.scope("conv"):
        b, c, inner = split(weights.linear("in", x, has_bias=spec.has_bias), -1, (spec.channels,) * 3)
        convolved, updated = _by_rows(groups, (b * inner,), partial(_conv, weights, spec))
        return weights.linear("out", c * convolved, has_bias=spec.has_bias, ranks=spec.share.count), updated


def _conv(weights: Weights, spec: ConvSpec, x: Tensor, states: States) -> tuple[Tensor, dict[str, Tensor]]:
    y, conv = convolution(weights, x, states, has_bias=spec.has_bias)
    return y, {"conv": conv}


def convolution(weights: Weights, x: Tensor, states: States, *, has_bias: bool) -> tuple[Tensor, Tensor]:
    """Convolve each channel of x [B, S, C] with `taps` in fp32; return the result and the updated state."""
    graph = x.graph
    with graph.scope("taps"):
        kernel = np.asarray(weights.array("weight")).astype(np.float32)  # [C, 1, L]
        taps = [graph.constant(kernel[None, :, :, at].transpose(0, 2, 1), "tap") for at in range(kernel.shape[2])]
        bias = None
        if has_bias:
            bias = graph.constant(np.asarray(weights.array("bias")).astype(np.float32)[None, None], "bias", FP32)
        y, tokens = causal_convolution(x, states.arrays["conv"], taps, bias)
        return y, last_tokens(tokens, states.token_counts, kernel.shape[2] - 1)
