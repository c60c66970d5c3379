"""Attention that reads pages where they are, as the custom op PagedAttention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.network.custom_layer import add_op
from trtkit.network.custom_op import find

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """What a layer reads where it is. keys, values: pools [P, K, page, H]. attributes: the op's, by name."""

    rows: PageRows
    keys: Tensor
    values: Tensor
    attributes: Mapping[str, float | str]


def paged_attention(
    q: Tensor, new_keys: Tensor, new_values: Tensor, pages: Pages, sinks: Tensor | None = None
) -> Tensor:
    """Attend from q [B, N, S, H], already scaled, to cached tokens and new ones, causally; rows of padding are zero.

    new_keys, new_values: of the new tokens [B, K, S, H], in the type of the pools. sinks: [N], see
    `attention_from_primitives`.
    """
    op, rows = find("PagedAttention"), pages.rows
    inputs = (q, pages.keys, pages.values, new_keys, new_values, rows.table, rows.lengths, rows.counts, sinks)
    return add_op(q.graph, op, inputs, op.attributes(**pages.attributes))[0]
