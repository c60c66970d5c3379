"""Where tokens stand, as attention needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.network.ops.rotary import rotary_embedding

if TYPE_CHECKING:
    from trtkit.models.attention import RopeSpec
    from trtkit.network.graph import Tensor
    from trtkit.network.ops.rotary import RotaryTables


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions of tokens. mask: as in `ops.attention`; None if pages are read where they are.

    ids: None if nothing is looked up by them. kv_lengths: None if the attention layer does not use them.
    tables: cosines and sines of the layer's rotary embedding, by position or, where tokens of images turn otherwise
    (M-RoPE), by token (is_by_token); None if it has none.
    query_growth: [B, 1, S, 1] in fp32, factors of the queries; None if there are none.
    """

    ids: Tensor | None
    mask: Tensor | None
    tables: RotaryTables | None = None
    kv_lengths: Tensor | None = None
    query_growth: Tensor | None = None
    is_by_token: bool = False


def rotate(name: str, x: Tensor, rope: RopeSpec | None, positions: Positions) -> Tensor:
    """Turn x [B, heads, S, H] by its positions, if the layer does."""
    if rope is None or positions.tables is None:
        return x
    with x.graph.scope(name):
        ids = None if positions.is_by_token else positions.ids
        return rotary_embedding(x, positions.tables, ids, rope.dim, is_interleaved=rope.is_interleaved)
