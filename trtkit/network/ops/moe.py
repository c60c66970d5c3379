"""Mixture of experts from primitives: every expert computes every token, and routing weights choose.

TensorRT-RTX 1.7.1 cannot lower the native MoE layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.ops.arithmetic import cast, equal, maximum, softmax, sum_over
from trtkit.network.ops.shape import transpose, unsqueeze

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest elements of the last axis and their int32 indices, both [..., k]."""
    graph = x.graph
    layer = graph.network.add_topk(x.trt, graph.backend.trt.TopKOperation.MAX, k, 1 << (x.rank - 1))
    values = graph.add(layer, "top_k")
    places = layer.get_output(1)
    places.name = f"{values.name}/indices"
    return values, graph.tensor(places)


def routing_weights(logits: Tensor, k: int, least_sum: float | None, bias: Tensor | None = None) -> Tensor:
    """Return each token's weight for each expert: logits [B, S, E] -> fp32 [B, S, E], zero for all but k of them.

    least_sum: the k weights are divided by their sum, or by this if it is more; None: they are not.
    bias: [1, 1, E], joins the scores to choose experts by.
    Source: https://arxiv.org/abs/2101.03961, HF `MixtralTopKRouter`.
    """
    graph = logits.graph
    with graph.scope("routing"):
        scores = softmax(cast(logits, FP32))
        _, chosen = top_k(scores if bias is None else scores + bias, k)
        experts = graph.constant(np.arange(logits.shape[-1], dtype=np.int32).reshape(1, 1, 1, -1), "experts")
        is_chosen = equal(unsqueeze(chosen, 3), experts)  # [B, S, k, E]
        weights = sum_over(cast(is_chosen, FP32), 2) * scores
        if least_sum is None:
            return weights
        total = unsqueeze(sum_over(weights, -1), -1)
        return weights / (maximum(total, least_sum) if least_sum else total)


def combine_experts(outputs: Tensor, weights: Tensor) -> Tensor:
    """Sum the experts' outputs [B, E, S, D] by weights [B, S, E] -> [B, S, D]; in fp32."""
    by_expert = unsqueeze(transpose(weights, (0, 2, 1)), 3)  # [B, E, S, 1]
    return cast(sum_over(cast(outputs, FP32) * by_expert, 1), outputs.dtype)
