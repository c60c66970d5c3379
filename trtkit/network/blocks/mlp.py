"""Feed-forward blocks: gated and plain MLPs, mixtures of experts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.models.spec import MlpSpec, MoeSpec
from trtkit.models.weights import XIELU_WEIGHTS
from trtkit.network.ops.activation import activation, sigmoid, xielu
from trtkit.network.ops.collective import all_reduce
from trtkit.network.ops.linear import linear
from trtkit.network.ops.moe import combine_experts, routing_weights
from trtkit.network.ops.shape import concat, split, take, unsqueeze

if TYPE_CHECKING:
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def feed_forward_block(weights: Weights, x: Tensor, spec: MlpSpec | MoeSpec) -> Tensor:
    """Apply a layer's feed-forward part to x [B, S, D]."""
    if isinstance(spec, MoeSpec):
        return moe_block(weights, x, spec)
    return mlp_block(weights, "mlp", x, spec)


def mlp_block(weights: Weights, name: str, x: Tensor, spec: MlpSpec, ranks: int | None = None) -> Tensor:
    """Compute down(act(gate(x)) * up(x)), or down(act(up(x))) without a gate; x [B, S, D].

    ranks: whose outputs are summed; all that share the block if None.
    """
    with x.graph.scope(name):
        if spec.is_fused:
            both = weights.linear("gate_up", x, has_bias=spec.has_bias)
            gate, up = split(both, -1, (spec.intermediate_size, spec.intermediate_size))
            inner = activation(gate, spec.activation) * up
        elif spec.is_gated:
            gate = weights.linear("gate", x, has_bias=spec.has_bias)
            inner = activation(gate, spec.activation) * weights.linear("up", x, has_bias=spec.has_bias)
        else:
            up = weights.linear("up", x, has_bias=spec.has_bias)
            inner = _xielu(weights, up) if spec.has_learned_activation else activation(up, spec.activation)
        return weights.linear("down", inner, has_bias=spec.has_bias, ranks=ranks or spec.share.count)


def _xielu(weights: Weights, x: Tensor) -> Tensor:
    """Apply xIELU with the layer's own scalars."""
    with x.graph.scope("act"):
        positive, negative, beta, eps = (
            float(np.asarray(weights.array(name)).astype(np.float32).item()) for name in XIELU_WEIGHTS
        )
        return xielu(x, (math.log1p(math.exp(positive)), beta + math.log1p(math.exp(negative))), beta, eps)


def moe_block(weights: Weights, x: Tensor, spec: MoeSpec) -> Tensor:
    """Apply each token's top-k experts, and the shared expert if there is one; x [B, S, D]."""
    with x.graph.scope("moe"):
        routing = _routing(weights, x, spec)
        if spec.share.count > 1:
            routing = take(routing, -1, spec.experts.start, len(spec.experts))
        y = combine_experts(_all_experts(weights, unsqueeze(x, 1), spec), routing)
        if spec.shared is None:
            return all_reduce(y, spec.ranks)
        is_joint = spec.shared.share.count == spec.ranks and not spec.shared.has_bias
        y = y if is_joint else all_reduce(y, spec.ranks)
        weight = sigmoid(weights.linear("shared_router", x)) if spec.is_shared_gated else None
        shared = mlp_block(weights, "shared", x, spec.shared, 1 if is_joint else None)
        y = y + (shared if weight is None else weight * shared)
        return all_reduce(y, spec.ranks) if is_joint else y


def _routing(weights: Weights, x: Tensor, spec: MoeSpec) -> Tensor:
    """Return each token's weight for each expert [B, S, E]: x [B, S, D]."""
    logits, bias = weights.linear("router", x), None
    if spec.has_choice_bias:
        array = weights.array("choice_bias")
        bias = weights.graph.constant(array.reshape(1, *array.shape), "choice_bias", FP32)
    least = spec.least_sum if spec.norm_topk_prob else None
    return routing_weights(logits, spec.top_k, least, bias)


def _all_experts(weights: Weights, x: Tensor, spec: MoeSpec) -> Tensor:
    """Compute every expert's gated MLP: x [B, 1, S, D] -> [B, E, S, D]."""
    if weights.is_quantized(f"experts/{spec.experts.start}/gate"):  # each expert may change its inputs in its own way
        each = [mlp_block(weights, f"experts/{index}", x, spec.expert, ranks=1) for index in spec.experts]
        return concat(each, axis=1)
    gate, up, down = (_stacked(weights, name, spec.experts) for name in ("gate", "up", "down"))
    with x.graph.scope("experts"):
        inner = activation(linear(x, gate), spec.expert.activation) * linear(x, up)
        return linear(inner, down)


def _stacked(weights: Weights, name: str, experts: range) -> Tensor:
    """Return the experts' matrices `name` as one tensor [1, E, out, in], joined by TensorRT rather than in memory."""
    graph = weights.graph
    parts = []
    for index in experts:
        with graph.scope(f"experts/{index}/{name}"):
            parts.append(weights.get("weight", 4))
    with graph.scope(f"experts/{name}"):
        return concat(parts, axis=1)
