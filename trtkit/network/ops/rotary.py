"""Rotary position embedding on the native layer."""

from __future__ import annotations

from trtkit.network.graph import Tensor

RotaryTables = tuple[Tensor, Tensor]
"""Cosines and sines."""


def rotary_embedding(
    x: Tensor, tables: RotaryTables, position_ids: Tensor | None, dim: int, *, is_interleaved: bool = False
) -> Tensor:
    """Rotate the first `dim` elements of each head of x [B, N, S, H] by the angles of its position.

    tables: cosines and sines in x's type: [positions, dim / 2] with position_ids [B, S], or [B, S, dim / 2] without.
    Source: https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/_static/operators/RotaryEmbedding.html
    """
    graph = x.graph
    size = 0 if dim == x.shape[-1] else dim
    layer = graph.network.add_rotary_embedding(x.trt, tables[0].trt, tables[1].trt, is_interleaved, size)
    if layer is not None and position_ids is not None:
        layer.set_input(3, position_ids.trt)
    return graph.add(layer, "rotary_embedding")
