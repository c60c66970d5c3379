"""Attention that reads pages where they are, as the custom op PagedAttention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.network.custom_layer import add_op
from trtkit.network.custom_op import find

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


@dataclass(frozen=True, eq=False)
class PageRows:
    """Which tokens a call's sequences have. table: [B, n], the pages of each, in order.

    lengths, counts: [B], tokens in the pages, and new ones.
    """

    table: Tensor
    lengths: Tensor
    counts: Tensor


@dataclass(frozen=True, eq=False)
class Pages:
    """What a layer reads where it is. keys, values: pools [P, K, page, H].

    window: how many tokens up to its own one attends to. softcap: of scores. Both are 0 for none.
    """

    rows: PageRows
    keys: Tensor
    values: Tensor
    window: int = 0
    softcap: float = 0.0


def paged_attention(q: Tensor, new: tuple[Tensor, Tensor], pages: Pages) -> Tensor:
    """Attend from q [B, N, S, H], already scaled, to cached tokens and new ones, causally; rows of padding are zero.

    new: keys and values of the new tokens [B, K, S, H].
    """
    op, rows = find("PagedAttention"), pages.rows
    inputs = (q, pages.keys, pages.values, *new, rows.table, rows.lengths, rows.counts)
    return add_op(q.graph, op, inputs, op.attributes(window=pages.window, softcap=float(pages.softcap)))[0]
