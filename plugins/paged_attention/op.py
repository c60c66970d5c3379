"""Attention over paged KV caches: attributes and output shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import BF16, FP8, FP16, FP32, INT8, INT32, dtype_of
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Refusal

from .lowering import FORMS, lower

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATS = (FP32, FP16, BF16)
_CACHED = (*_FLOATS, INT8, FP8)
UNQUANTIZED = "none"
_FORMATS = (UNQUANTIZED, "int8", "fp8")


@dataclass(frozen=True)
class PagedAttentionAttributes:
    """window: how many keys a token attends to, its own included; 0 for all.

    softcap: scores become softcap * tanh(score / softcap); 0: no soft cap.
    quantization: `int8` or `fp8` if keys and values, cached and new, are quantized to this type; otherwise `none`.
    key_scale, value_scale: factors from codes to numbers.
    parts: how many programs of the kernel share a sequence's keys; the answer does not depend on it.
    """

    window: int = 0
    softcap: float = 0.0
    quantization: str = UNQUANTIZED
    key_scale: float = 1.0
    value_scale: float = 1.0
    parts: int = 1


def infer(facts: Sequence[Fact | None], attributes: PagedAttentionAttributes) -> list[Fact]:
    """Return [B, N, S, H]. Raises Refusal for query heads that key/value heads do not divide, types and attributes."""
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
    if attributes.parts < 1:
        raise Refusal(f"{attributes.parts} parts: 1 or more are allowed")
    _check_types(facts, attributes)
    return [Fact(q.dtype, q.shape)]


def _check_types(facts: Sequence[Fact | None], attributes: PagedAttentionAttributes) -> None:
    """Raise Refusal unless sinks have the queries' type, and keys and values have it too or the quantized type."""
    form, scales = attributes.quantization, (attributes.key_scale, attributes.value_scale)
    if form not in _FORMATS:
        raise Refusal(f"quantization `{form}`: one of {', '.join(_FORMATS)} is allowed")
    if not all(0 < scale < math.inf for scale in scales) or (form == UNQUANTIZED and scales != (1.0, 1.0)):
        raise Refusal(f"scales {scales}: positive ones are allowed, and 1.0 without quantization")
    q, *cached = (fact for fact in facts[:5] if fact is not None)
    sinks = [fact for fact in facts[8:] if fact is not None]
    if {fact.dtype for fact in (q, *sinks)} != {q.dtype}:
        raise Refusal(f"queries in {q.dtype} and sinks in {sinks[0].dtype}: one type wanted")
    wanted = q.dtype if form == UNQUANTIZED else dtype_of(form)
    if {fact.dtype for fact in cached} != {wanted}:
        types = ", ".join(sorted({fact.dtype.name for fact in cached}))
        raise Refusal(f"keys and values in {types}: {wanted} wanted for queries in {q.dtype}, quantization `{form}`")


OP = CustomOp(
    name="PagedAttention",
    inputs=(
        Port("q", "B N S H", _FLOATS),
        Port("key_pool", "P K page H", _CACHED),
        Port("value_pool", "P K page H", _CACHED),
        Port("new_key", "B K S H", _CACHED),
        Port("new_value", "B K S H", _CACHED),
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
