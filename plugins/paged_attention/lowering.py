"""Attention over paged KV caches from TensorRT's layers: gathers, that is copies, each sequence's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP8, FP32, INT32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.dtypes import DType
    from trtkit.network.lowering.ops import Ops, T

    from .op import PagedAttentionAttributes

FORMS = ("gather",)


def lower(
    o: Ops[T],
    inputs: Sequence[T | None],
    attributes: PagedAttentionAttributes,
    form: str,  # noqa: ARG001
) -> list[T]:
    """Attend from q [B, N, S, H] to cached and new tokens; matrix products are in q's type, the rest in fp32."""
    sinks = inputs[_SINKS] if len(inputs) > _SINKS else None
    tensors = [x for x in inputs[:_SINKS] if x is not None]
    q, key_pool, value_pool, new_key, new_value, page_table, lengths, counts = tensors
    _, heads, _, size = q.shape
    shared, tokens = new_key.shape[1], o.size(q, 2)
    cached_keys, new_keys = _read(o, key_pool, new_key, page_table, attributes.key_scale, q.dtype)
    keys = o.concat([cached_keys, new_keys], 2)  # [B, K, T + S, H]
    values = o.concat(_read(o, value_pool, new_value, page_table, attributes.value_scale, q.dtype), 2)
    grouped = o.reshape(q, [-1, shared, heads // shared, tokens, size])
    scores = o.matmul(grouped, o.unsqueeze(o.transpose(keys, (0, 1, 3, 2)), 2))  # [B, K, G, S, T + S]
    steps = o.arange(tokens, INT32)  # [S]
    columns = _key_positions(o, o.arange(o.size(cached_keys, 2), INT32), steps, lengths, counts)
    allowed = _allowed(o, columns, o.unsqueeze(lengths, 1) + steps, attributes.window)
    grouped_sinks = None if sinks is None else o.reshape(sinks, [1, shared, heads // shared, 1, 1])
    weights = _weights(o, scores, allowed, grouped_sinks, attributes.softcap)
    y = o.reshape(o.matmul(weights, o.unsqueeze(values, 2)), [-1, heads, tokens, size])
    is_token = steps < o.unsqueeze(counts, 1)  # [B, S]
    return [o.select(o.unsqueeze(is_token, 1, 3), y, 0.0)]


def _read(o: Ops[T], pool: T, new: T, page_table: T, scale: float, dtype: DType) -> list[T]:
    """Return cached keys or values [B, K, T, H] and new ones [B, K, S, H] in `dtype`."""

    def real(x: T) -> T:
        return x if x.dtype == dtype else o.dequantize(x, scale, dtype)

    copied = _pages(o, real(pool) if pool.dtype == FP8 else pool, page_table)  # TensorRT cannot gather fp8
    return [real(copied), real(new)]


def _pages(o: Ops[T], pool: T, page_table: T) -> T:
    """Return each sequence's pages in order: [B, K, n * page, H]."""
    by_head = o.transpose(o.gather(pool, page_table, 0), (0, 2, 1, 3, 4))  # [B, K, n, page, H]
    return o.reshape(by_head, [0, pool.shape[1], -1, pool.shape[3]])


def _key_positions(o: Ops[T], cached: T, steps: T, lengths: T, counts: T) -> T:
    """Return the keys' positions [B, T + S]; those of empty cache entries and padding are beyond any token's.

    cached: 0..T-1. steps: 0..S-1. lengths, counts: numbers of cached and of new tokens, [B].
    """
    filled, counts = o.unsqueeze(lengths, 1), o.unsqueeze(counts, 1)
    old = o.select(cached < filled, filled * 0 + cached, _NOWHERE)
    new = o.select(steps < counts, filled + steps, _NOWHERE)
    return o.concat([old, new], 1)


def _allowed(o: Ops[T], columns: T, rows: T, window: int) -> T:
    """Return which keys, at positions columns [B, T + S], tokens at rows [B, S] attend to: [B, 1, 1, S, T + S]."""
    columns, rows = o.unsqueeze(columns, 1, 2, 3), o.unsqueeze(rows, 1, 2, 4)
    allowed = columns < rows + 1
    return allowed & (columns > rows - window) if window else allowed


def _weights(o: Ops[T], scores: T, allowed: T, sinks: T | None, softcap: float) -> T:
    """Return each key's softmax weight [B, K, G, S, T + S]. sinks: scores without values, [1, K, G, 1, 1]."""
    with o.fp32():
        exact = o.cast(scores, FP32)
        if softcap:
            exact = o.unary("tanh", exact / softcap) * softcap
        exact = o.select(allowed, exact, _LOWEST)
        if sinks is None:
            weights = o.softmax(exact)
        else:
            sink = o.cast(sinks, FP32)
            largest = o.binary("max", o.reduce("max", exact, (4,), keep=True), sink)
            shares = o.unary("exp", exact - largest)
            weights = shares / (o.reduce("sum", shares, (4,), keep=True) + o.unary("exp", sink - largest))
    return o.cast(weights, scores.dtype)


_SINKS = 8
_LOWEST = -1e30
# Beyond any position, so that no token attends to it.
_NOWHERE = 1 << 30
