"""Matrix products."""

from __future__ import annotations

from trtkit.network.graph import Tensor, same_graph


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Multiply the last two axes; leading axes broadcast, missing ones are added."""
    graph = same_graph((a, b))
    rank = max(a.rank, b.rank)
    a, b = graph.with_rank(a, rank), graph.with_rank(b, rank)
    kinds = graph.backend.trt.MatrixOperation
    kind_a, kind_b = (kinds.TRANSPOSE if is_turned else kinds.NONE for is_turned in (transpose_a, transpose_b))
    return graph.add(graph.network.add_matrix_multiply(a.trt, kind_a, b.trt, kind_b), "matmul")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, is_in_out: bool = False) -> Tensor:
    """Compute x W^T + bias. weight: [out, in] as torch stores it, or [in, out] with `is_in_out` (GPT-2)."""
    y = matmul(x, weight, transpose_b=not is_in_out)
    return y if bias is None else y + bias
