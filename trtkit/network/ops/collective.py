"""Collectives among the ranks of a pipeline stage: TensorRT's DistCollective layers, executed by NCCL.

TensorRT returns none of a collective's parameters, so each layer's metadata stores them as JSON. A layer's ranks must
be set before its output is requested.
Source: `INetworkDefinition::addDistCollective` in NvInfer.h.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trtkit.network.ops.shape import concat, reshape, split, transpose, unsqueeze

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.graph import Tensor


def all_reduce(x: Tensor, ranks: int) -> Tensor:
    """Return the sum of every rank's x; x itself if there is one rank."""
    return x if ranks == 1 else _collective(x, "ALL_REDUCE", "SUM", ranks)


def reduce_scatter(x: Tensor, ranks: int) -> Tensor:
    """Return this rank's share of the rows of the sum of every rank's x [n, ...], where `ranks` divides n."""
    return _collective(x, "REDUCE_SCATTER", "SUM", ranks)


def all_gather(x: Tensor, ranks: int) -> Tensor:
    """Join every rank's x [n, ...] along the first axis: [ranks * n, ...], in the order of ranks."""
    return _collective(x, "ALL_GATHER", "NONE", ranks)


def gather_heads(parts: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Join each part [B, heads, S, H] of every rank along its heads, in the order of ranks; one collective for all."""
    with parts[0].graph.scope("gather_heads"):
        x, sizes = concat(list(parts), 1), tuple(part.shape[1] for part in parts)
        by_rank = transpose(all_gather(unsqueeze(x, 0), ranks), (1, 0, 2, 3, 4))  # [B, ranks, heads, S, H]
        tokens, size = 1 if x.shape[2] == 1 else -1, x.shape[3]
        every = zip(split(by_rank, 2, sizes), sizes, strict=True)
        return [reshape(part, (0, ranks * heads, tokens, size)) for part, heads in every]


def scatter_heads(x: Tensor, ranks: int) -> Tensor:
    """Give each rank its heads of every rank's x [B, heads, S, H]: [ranks, B, heads / ranks, S, H], by source rank."""
    with x.graph.scope("scatter_heads"):
        tokens = 1 if x.shape[2] == 1 else -1
        by_rank = reshape(x, (0, ranks, x.shape[1] // ranks, tokens, x.shape[3]))
        return _collective(transpose(by_rank, (1, 0, 2, 3, 4)), "ALL_TO_ALL", "NONE", ranks)


def all_gather_last(x: Tensor, ranks: int) -> Tensor:
    """Join every rank's x [..., n] along the last axis: [..., ranks * n], in the order of ranks."""
    if ranks == 1:
        return x
    with x.graph.scope("all_gather"):
        parts = all_gather(unsqueeze(x, 0), ranks)  # [ranks, ..., n]
        joined = transpose(parts, (*range(1, x.rank), 0, x.rank))
        return reshape(joined, (*[0] * (x.rank - 1), ranks * x.shape[-1]))


def _collective(x: Tensor, operation: str, reduction: str, ranks: int) -> Tensor:
    graph, trt = x.graph, x.graph.backend.trt
    kinds = getattr(trt.CollectiveOperation, operation), getattr(trt.ReduceOperation, reduction)
    layer = graph.network.add_dist_collective(x.trt, *kinds, -1, None)
    if layer is not None:
        layer.num_ranks = ranks
        stated = {"operation": operation, "reduce_op": reduction, "root": -1, "ranks": ranks}
        layer.metadata = json.dumps({"collective": stated})
    return graph.add(layer, operation.lower())
