"""Feed-forward blocks: gated and plain MLPs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.models.weights import XIELU_WEIGHTS
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.activation import activation, largest_gates, sigmoid, xielu
from trtkit.network.ops.arithmetic import clip, minimum
from trtkit.network.ops.shape import split

if TYPE_CHECKING:
    from trtkit.models.feed_forward import MlpSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def mlp_block(weights: Weights, name: str, x: Tensor, spec: MlpSpec, ranks: int | None = None) -> Tensor:
    """Compute down(act(gate(x)) * up(x)), or down(act(up(x))) without a gate; x [B, S, D].

    ranks: those whose outputs are summed; None for all that share the block.
    """
    with x.graph.scope(name):
        if spec.is_fused:
            both = weights.linear("gate_up", x, has_bias=spec.has_bias)
            gate, up = split(both, -1, (spec.intermediate_size, spec.intermediate_size))
            inner = gate_of(gate, spec) * limited(up, spec)
        elif spec.is_gated:
            gate = gate_of(weights.linear("gate", x, has_bias=spec.has_bias), spec)
            inner = gate * limited(weights.linear("up", x, has_bias=spec.has_bias), spec)
        else:
            up = weights.linear("up", x, has_bias=spec.has_bias)
            inner = _xielu(weights, up) if spec.has_learned_activation else activation(up, spec.activation)
        ranks = ranks or spec.share.count
        if spec.norm is not None:
            inner = norm_block(weights, "norm", inner, spec.norm, spec.share.count)
        has_bias = spec.has_bias and (ranks > 1 or is_bias_added(spec))
        y = weights.linear("down", inner, has_bias=has_bias, ranks=ranks)
        return y * spec.factor if spec.factor != 1 else y


def is_bias_added(spec: MlpSpec) -> bool:
    """Whether this rank adds the last bias, if ranks that share the block sum their outputs later: only one does."""
    return spec.share.index == 0


def gate_of(gate: Tensor, spec: MlpSpec) -> Tensor:
    """Return the factor of `up`. Source of the form with a limit: HF `GptOssExperts._apply_gate`."""
    if spec.limit is None:
        gate = gate * spec.gate_factor if spec.gate_factor != 1 else gate
        gate = largest_gates(gate, spec.sparsity, spec.share.count) if spec.sparsity else gate
        return activation(gate, spec.activation)
    gate = minimum(gate, spec.limit)
    return gate * sigmoid(gate * spec.sigmoid_factor)


def limited(up: Tensor, spec: MlpSpec) -> Tensor:
    """Return `up` clamped to the block's limit, plus 1; unchanged without a limit."""
    return up if spec.limit is None else clip(up, spec.limit) + 1.0


def _xielu(weights: Weights, x: Tensor) -> Tensor:
    """Apply xIELU with the layer's own scalars."""
    with x.graph.scope("act"):
        positive, negative, beta, eps = (
            float(np.asarray(weights.array(name)).astype(np.float32).item()) for name in XIELU_WEIGHTS
        )
        return xielu(x, math.log1p(math.exp(positive)), beta + math.log1p(math.exp(negative)), beta, eps)
