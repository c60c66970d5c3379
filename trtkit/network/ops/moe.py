"""Mixture of experts from primitives: experts compute all tokens, and routing weights choose.

TensorRT-RTX 1.7.1 cannot lower the native MoE layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.ops.activation import sigmoid, tanh
from trtkit.network.ops.arithmetic import (
    absolute,
    cast,
    equal,
    logical_not,
    maximum,
    minimum,
    select,
    softmax,
    sum_over,
)
from trtkit.network.ops.shape import concat, reshape, reshape_like, size_of, slice_of, transpose, unsqueeze

if TYPE_CHECKING:
    from trtkit.models.feed_forward import RoutingSpec
    from trtkit.network.graph import Tensor

LOWEST = -1e30
"""A score that is never chosen, and whose exponential is zero."""


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest elements of the last axis and their int32 indices, both [..., k]."""
    graph = x.graph
    layer = graph.network.add_topk(x.trt, graph.backend.trt.TopKOperation.MAX, k, 1 << (x.rank - 1))
    values = graph.add(layer, "top_k")
    indices = layer.get_output(1)
    indices.name = f"{values.name}/indices"
    return values, graph.tensor(indices)


@dataclass(frozen=True, eq=False)
class Choice:
    """The chosen experts of tokens, and the weight of each one's output: int32 and fp32, both [B, S, k]."""

    experts: Tensor
    weights: Tensor


def choose_experts(logits: Tensor, routing: RoutingSpec, bias: Tensor | None = None) -> Choice:
    """Choose each token's experts by a router's logits [B, S, E]. bias: [1, 1, E], counts for the choice alone.

    Source: https://arxiv.org/abs/2101.03961, HF `MixtralTopKRouter`; with groups https://arxiv.org/abs/2412.19437,
    section 2.1.2, HF `DeepseekV3TopkRouter`.
    """
    with logits.graph.scope("routing"):
        logits = cast(logits, FP32)
        logits = tanh(logits / routing.softcap) * routing.softcap if routing.softcap else logits
        if routing.scores == "sparse_mixer":
            return _mixed_sparsely(logits, routing.jitter)
        scores = sigmoid(logits) if routing.scores == "sigmoid" else softmax(logits)
        # Sigmoids of large logits are all 1, where the logits still differ.
        by_logits = bias is None and routing.scores == "sigmoid" and routing.groups == 1
        rated = logits if by_logits else scores if bias is None else scores + bias
        _, chosen = top_k(_in_best_groups(rated, routing) if routing.groups > 1 else rated, routing.top_k)
        weights = _picked(scores, chosen)
        if routing.norm_topk_prob:
            total = unsqueeze(sum_over(weights, -1), -1)
            total = total + routing.sum_epsilon if routing.sum_epsilon else total
            weights = weights / (maximum(total, routing.min_sum) if routing.min_sum else total)
        return Choice(chosen, weights * routing.scale if routing.scale != 1 else weights)


def scaled_choice(choice: Choice, scales: Tensor) -> Choice:
    """Return a choice whose weights are multiplied by each expert's scale [1, 1, E]."""
    return Choice(choice.experts, choice.weights * _picked(scales, choice.experts))


def own_choice(choice: Choice, experts: range) -> Choice:
    """Return the choice among one rank's experts, by their index there; others have weight 0."""
    graph = choice.experts.graph
    with graph.scope("own"):
        first, last, zero = (
            graph.constant(np.full((1, 1, 1), n, np.int32)) for n in (experts.start, len(experts) - 1, 0)
        )
        local_experts = choice.experts - first
        held = minimum(maximum(local_experts, zero), last)
        return Choice(held, choice.weights * cast(equal(held, local_experts), FP32))


def weight_of_each(choice: Choice, experts: int) -> Tensor:
    """Return each token's weight for every expert in fp32 [B, S, E]: zero for experts that were not chosen."""
    return sum_over(_marked(choice.experts, experts) * unsqueeze(choice.weights, 3), 2)


def read_experts(choice: Choice, experts: int) -> tuple[Tensor, Tensor]:
    """Return the experts to read [M], and each token's weight for each of them in fp32 [B, S, M].

    M is the number of choices, in order, if it is smaller than `experts`; otherwise all experts are read.
    """
    graph = choice.experts.graph
    with graph.scope("read"):
        chosen = reshape(choice.experts, (-1,))
        numbers = graph.constant(np.arange(experts, dtype=np.int32), "numbers")
        choices, zero, count = size_of(chosen), *(graph.constant(np.array([n], np.int64)) for n in (0, experts))
        is_fewer, size = choices < count, minimum(choices, count)
        both = concat([chosen, numbers], 0)
        read = slice_of(both, select(is_fewer, zero, choices), size)
        indices = reshape_like(slice_of(both, select(is_fewer, choices, zero), choices), choice.experts)
        is_place = equal(unsqueeze(indices, 3), unsqueeze(slice_of(numbers, zero, size), 0, 1, 2))  # [B, S, k, M]
        return read, sum_over(cast(is_place, FP32) * unsqueeze(choice.weights, 3), 2)


def _in_best_groups(rated: Tensor, routing: RoutingSpec) -> Tensor:
    """Return the scores [B, S, E] to choose by, with the lowest score for experts outside the best groups."""
    count = rated.shape[-1]
    groups = reshape(rated, (0, 0, routing.groups, count // routing.groups))
    highest, _ = top_k(groups, 2 if routing.group_score == "two_best" else 1)
    _, best = top_k(sum_over(highest, -1), routing.top_groups)
    is_best = sum_over(_marked(best, routing.groups), 2) > 0.5  # [B, S, groups]
    return reshape(select(unsqueeze(is_best, 3), groups, LOWEST), (0, 0, count))


def _mixed_sparsely(logits: Tensor, jitter: float) -> Choice:
    """Choose two experts, one after the other. Source: https://arxiv.org/abs/2409.12136, HF `sparsemixer`."""
    experts, weights, candidates = [], [], logits
    for _ in range(2):
        best, index = top_k(candidates, 1)
        is_near = logical_not((best - logits) / maximum(absolute(logits), best) > 2 * jitter)
        probabilities = softmax(select(is_near, candidates, LOWEST))
        experts.append(index)
        weights.append(_picked(probabilities, index))
        is_left = sum_over(_marked(index, logits.shape[-1]), 2) < 0.5
        candidates = select(is_left, candidates, LOWEST)
    return Choice(concat(experts, -1), concat(weights, -1))


def _picked(scores: Tensor, indices: Tensor) -> Tensor:
    """Return the scores [B, S, k] at places [B, S, k] of [B, S, E]."""
    return sum_over(_marked(indices, scores.shape[-1]) * unsqueeze(scores, 2), 3)


def _marked(indices: Tensor, size: int) -> Tensor:
    """Return one-hot vectors of indices [B, S, k] in fp32: [B, S, k, size]."""
    numbers = indices.graph.constant(np.arange(size, dtype=np.int32).reshape(1, 1, 1, -1), "numbers")
    return cast(equal(unsqueeze(indices, 3), numbers), FP32)


def combine_experts(outputs: Tensor, weights: Tensor | None) -> Tensor:
    """Sum the experts' outputs [B, E, S, D] by weights [B, S, E], or as they are -> [B, S, D]; in fp32."""
    with outputs.graph.scope("experts"):
        wide = cast(outputs, FP32)
        return cast(sum_over(wide if weights is None else wide * _by_expert(weights), 1), outputs.dtype)


def scale_inputs(x: Tensor, weights: Tensor) -> Tensor:
    """Return x [B, S, D] times its weight for each expert [B, S, E] -> [B, E, S, D]."""
    with x.graph.scope("experts"):
        return unsqueeze(x, 1) * cast(_by_expert(weights), x.dtype)


def _by_expert(weights: Tensor) -> Tensor:
    """[B, S, E] -> [B, E, S, 1]."""
    return unsqueeze(transpose(weights, (0, 2, 1)), 3)
