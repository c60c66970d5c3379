"""Feed-forward blocks that are a mixture of experts, and those that are not.

A step reads no more experts' matrices than it has choices: one token of Qwen3-30B-A3B takes 8 of 128. TensorRT takes a
conditional between the two forms too, but then a plan holds all matrices twice; and it takes codes of quantized
matrices nowhere but right before they are dequantized, so that quantized experts are all read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP32
from trtkit.models.feed_forward import MlpSpec, MoeSpec
from trtkit.network.blocks.mlp import gate_of, is_bias_added, limited, mlp_block
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.activation import activation, sigmoid
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.collective import all_reduce
from trtkit.network.ops.gather import entries
from trtkit.network.ops.linear import linear
from trtkit.network.ops.moe import (
    Choice,
    choose_experts,
    combine_experts,
    own_choice,
    read_experts,
    scale_inputs,
    scaled_choice,
    weight_of_each,
)
from trtkit.network.ops.norm import rms_norm
from trtkit.network.ops.shape import concat, reshape, reshape_like, split, unsqueeze

if TYPE_CHECKING:
    from trtkit.models.feed_forward import RoutingSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def feed_forward_block(weights: Weights, x: Tensor, spec: MlpSpec | MoeSpec, hidden: Tensor | None = None) -> Tensor:
    """Apply a layer's feed-forward part to x [B, S, D]. hidden: the layer's hidden state, of which x is the norm."""
    if not isinstance(spec, MoeSpec):
        return mlp_block(weights, "mlp", x, spec)
    if spec.apart is not None and spec.shared is not None and hidden is not None:
        return _apart_block(weights, x, hidden, spec)
    return moe_block(weights, x, spec)


def moe_block(weights: Weights, x: Tensor, spec: MoeSpec) -> Tensor:
    """Apply each token's top-k experts, and the shared expert if there is one; x [B, S, D]."""
    with x.graph.scope("moe"):
        y = _routed_and_shared(weights, x, spec)
        return y if spec.norm is None else norm_block(weights, "norm", y, spec.norm)


def _routed_and_shared(weights: Weights, x: Tensor, spec: MoeSpec) -> Tensor:
    """Return the sum of what chosen experts and the shared one make of x [B, S, D]."""
    # One matrix of all rows for each expert: a product with a batch would read the expert for each sequence.
    rows = reshape(x, (1, -1, x.shape[-1]))
    choice = _choice(weights, rows, spec)
    if spec.latent_size is not None:
        rows = weights.linear("latent/in", rows, has_bias=spec.has_latent_bias)
    y = _experts(weights, rows, choice, spec)
    y = y if spec.joins_shared else all_reduce(y, spec.ranks)
    if spec.latent_size is not None:
        y = weights.linear("latent/out", y, has_bias=spec.has_latent_bias)
    y = reshape_like(y, x)
    if spec.shared is None:
        return y
    shared = mlp_block(weights, "shared", x, spec.shared, 1 if spec.joins_shared else None)
    y = y + (sigmoid(weights.linear("shared_router", x)) * shared if spec.is_shared_gated else shared)
    return all_reduce(y, spec.ranks) if spec.joins_shared else y


def _apart_block(weights: Weights, x: Tensor, hidden: Tensor, spec: MoeSpec) -> Tensor:
    """Apply the shared expert to x [B, S, D] and the others to the hidden state [B, S, D]; norm and sum both."""
    assert spec.apart is not None
    assert spec.shared is not None
    norm = spec.apart
    with x.graph.scope("moe"):
        shared = norm_block(weights, "shared_norm", mlp_block(weights, "shared", x, spec.shared), norm)
        rows = reshape(hidden, (1, -1, hidden.shape[-1]))
        routed = rms_norm(rows, weights.get("router_scale", 3), norm.eps) * hidden.shape[-1] ** -0.5
        choice = scaled_choice(_choice(weights, routed, spec), cast(weights.get("expert_scale", 3), FP32))
        y = _experts(weights, norm_block(weights, "input_norm", rows, norm), choice, spec)
        y = all_reduce(reshape_like(y, hidden), spec.ranks)
        return shared + norm_block(weights, "output_norm", y, norm)


def _choice(weights: Weights, x: Tensor, spec: MoeSpec) -> Choice:
    """Return each token's experts and their weights: x [B, S, D]."""
    bias = None
    if spec.routing.choice_bias_axes:
        array = weights.array("choice_bias")
        bias = weights.graph.constant(array.reshape(1, 1, -1), "choice_bias", FP32)
    return choose_experts(_router_logits(weights, x, spec.routing), spec.routing, bias)


def _router_logits(weights: Weights, x: Tensor, routing: RoutingSpec) -> Tensor:
    """Return the router's score of each expert [B, S, E]."""
    if not routing.is_fp32 or weights.is_quantized("router"):
        return weights.linear("router", x, has_bias=routing.has_bias)
    with x.graph.scope("router"):
        array = weights.array("weight")
        bias = cast(weights.get("bias", x.rank), FP32) if routing.has_bias else None
        return linear(cast(x, FP32), x.graph.constant(array.reshape(1, *array.shape), "weight", FP32), bias)


def _experts(weights: Weights, x: Tensor, choice: Choice, spec: MoeSpec) -> Tensor:
    """Return the sum of what the rank's experts make of x [B, S, D], each weighed by the tokens' choice."""
    # Quantized experts may each change their inputs in their own way.
    is_quantized = weights.is_quantized(f"experts/{spec.experts.start}/up")
    read = None
    own = choice if spec.share.count == 1 else own_choice(choice, spec.experts)
    if weights.has_chosen_experts and not is_quantized and spec.reads_chosen:
        read, weight = read_experts(own, len(spec.experts))
    else:
        weight = weight_of_each(own, len(spec.experts))
    x = scale_inputs(x, weight) if spec.routing.scales_inputs else unsqueeze(x, 1)
    outputs = _each_expert(weights, x, spec) if is_quantized else _stacked_experts(weights, x, spec, read)
    return combine_experts(outputs, None if spec.routing.scales_inputs else weight)


def _each_expert(weights: Weights, x: Tensor, spec: MoeSpec) -> Tensor:
    """Compute all experts one by one: x [1, 1 or E, S, D] -> [1, E, S, D]."""
    parts = split(x, 1, (1,) * int(x.shape[1]))
    own = [reshape(part, (1, -1, x.shape[-1])) for part in parts]  # TensorRT quantizes blocks of three axes
    inputs = own if len(own) > 1 else own * len(spec.experts)
    outputs = [
        mlp_block(weights, f"experts/{index}", each, spec.expert, ranks=1)
        for index, each in zip(spec.experts, inputs, strict=True)
    ]
    return concat([unsqueeze(y, 1) for y in outputs], axis=1)


def _stacked_experts(weights: Weights, x: Tensor, spec: MoeSpec, read: Tensor | None = None) -> Tensor:
    """Compute experts' MLPs: x [B, 1 or M, S, D] -> [B, M, S, D]. read: their numbers [M]; all if None."""
    if spec.expert.is_gated:
        gate = _linear_of_each(weights, "gate", x, spec, read)
        with x.graph.scope("experts"):
            gate = gate_of(gate, spec.expert)
        up = _linear_of_each(weights, "up", x, spec, read)
        with x.graph.scope("experts"):
            inner = gate * limited(up, spec.expert)
    else:
        up = _linear_of_each(weights, "up", x, spec, read)
        with x.graph.scope("experts"):
            inner = activation(up, spec.expert.activation)
    return _linear_of_each(weights, "down", inner, spec, read)


def _linear_of_each(weights: Weights, name: str, x: Tensor, spec: MoeSpec, read: Tensor | None) -> Tensor:
    """Apply experts' linear layers `name` to x [1, 1 or M, S, in] -> [1, M, S, out]."""
    has_bias = spec.expert.has_bias and (name != "down" or is_bias_added(spec.expert))
    matrices = _stacked(weights, f"{name}/weight", spec.experts, read)
    biases = _stacked(weights, f"{name}/bias", spec.experts, read) if has_bias else None
    with x.graph.scope("experts"):
        return linear(x, matrices, biases)


def _stacked(weights: Weights, path: str, experts: range, read: Tensor | None) -> Tensor:
    """Return experts' weights as one tensor [1, M, out or 1, in or out], joined by TensorRT rather than in memory."""
    graph = weights.graph
    module, _, role = path.partition("/")
    parts = []
    for index in experts:
        with graph.scope(f"experts/{index}/{module}"):
            parts.append(weights.get(role, 4))
    with graph.scope(f"experts/{module}"):
        joined = concat(parts, axis=1)
        return joined if read is None else entries(joined, 1, read)
