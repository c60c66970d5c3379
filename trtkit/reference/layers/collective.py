"""Collectives between ranks: threads of one process, or processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

from trtkit.errors import ExecutionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.reference.layer import Layer, Op, Tensor

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "SUM": lambda parts: parts.sum(0),
    "PROD": lambda parts: parts.prod(0),
    "MAX": lambda parts: parts.amax(0),
    "MIN": lambda parts: parts.amin(0),
    "AVG": lambda parts: parts.mean(0),
}


def dist_collective(layer: Layer) -> Op:
    """Exchange tensors with the other ranks.

    TensorRT does not return the operation's parameters, so `layer.metadata` must hold them as JSON: {"collective":
    {"operation": "ALL_REDUCE", "reduce_op": "SUM", "root": 0}}. Parts are split and concatenated along axis 0. Source:
    CollectiveOperation in NvInfer.h; NCCL's collective operations.
    """
    operation, reduce_op, root = _parameters(layer)
    ranks = layer.settings.ranks
    dtype = layer.input_dtype()

    def reduced(parts: list[Tensor]) -> Tensor:
        wide = torch.stack(parts)
        wide = wide.float() if dtype.is_floating_point and dtype.itemsize < 4 else wide
        return _REDUCTIONS[reduce_op](wide).to(dtype)

    def run(x: Tensor) -> Tensor:
        parts = [x] if ranks is None else ranks.exchange(layer.name, x)
        rank, count = (0, 1) if ranks is None else (ranks.rank, ranks.count)
        if operation in ("ALL_REDUCE", "REDUCE"):
            return reduced(parts) if operation == "ALL_REDUCE" or rank == root else x
        if operation == "REDUCE_SCATTER":
            return reduced(parts).chunk(count)[rank]
        if operation == "BROADCAST":
            return parts[root]
        if operation == "SCATTER":
            return parts[root].chunk(count)[rank]
        if operation == "ALL_TO_ALL":
            return torch.cat([part.chunk(count)[rank] for part in parts])
        return torch.cat(parts) if operation == "ALL_GATHER" or rank == root else x

    return run


def _parameters(layer: Layer) -> tuple[str, str, int]:
    """Read operation, reduction and root from the layer's metadata."""
    try:
        stated = json.loads(layer.option("metadata"))["collective"]
        return str(stated["operation"]), str(stated.get("reduce_op", "NONE")), int(stated.get("root", 0))
    except (ValueError, KeyError, TypeError) as error:
        raise ExecutionError(
            "TensorRT does not let a collective's operation be read back",
            layer.name,
            'set layer.metadata to {"collective": {"operation": ..., "reduce_op": ..., "root": ...}}',
        ) from error
