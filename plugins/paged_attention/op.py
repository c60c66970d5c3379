"""Attention over paged key/value caches: inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import BF16, FP16, FP32, INT32
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Refusal

from .lowering import FORMS, lower

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATS = (FP32, FP16, BF16)


@dataclass(frozen=True)
class PagedAttentionAttributes:
    """window: how many keys up to its own a token attends to; 0 for all.

    softcap: scores become softcap * tanh(score / softcap); 0 leaves them as they are.
    """

    window: int = 0
    softcap: float = 0.0


def infer(facts: Sequence[Fact | None], attributes: PagedAttentionAttributes) -> list[Fact]:
    """Return [B, N, S, H]. Raises Refusal for heads that do not form groups, and for negative attributes."""
    q, pool, *_ = facts
    assert q is not None
    assert pool is not None
    heads, shared, size = q.shape[1], pool.shape[1], q.shape[3]
    if -1 in (heads, size, *pool.shape[1:]):
        raise Refusal("heads, their size and the page size must be known")
    if heads % shared:
        raise Refusal(f"{heads} query heads, a multiple of the {shared} key/value heads wanted")
    if attributes.window < 0 or attributes.softcap < 0:
        raise Refusal(f"window {attributes.window}, softcap {attributes.softcap}: 0 (none) or more is allowed")
    types = {fact.dtype.name for fact in facts if fact is not None and fact.dtype != INT32}
    if len(types) > 1:
        raise Refusal(f"queries, keys, values and sinks of types {', '.join(sorted(types))}: one type wanted")
    return [Fact(q.dtype, q.shape)]


OP = CustomOp(
    name="PagedAttention",
    inputs=(
        Port("q", "B N S H", _FLOATS),
        Port("key_pool", "P K page H", _FLOATS),
        Port("value_pool", "P K page H", _FLOATS),
        Port("new_key", "B K S H", _FLOATS),
        Port("new_value", "B K S H", _FLOATS),
        Port("page_table", "B n", (INT32,)),
        Port("cached_lengths", "B", (INT32,)),
        Port("counts", "B", (INT32,)),
        Port("sinks", "N", _FLOATS, is_optional=True),
    ),
    outputs=(Port("y", "B N S H", _FLOATS),),
    attributes=PagedAttentionAttributes,
    infer=infer,
    lower=lower,
    forms=FORMS,
)
