"""Attention over paged KV caches in plain torch. Source: https://arxiv.org/abs/2309.06180, equation 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .op import PagedAttentionAttributes


_SINKS = 8


def reference(inputs: Sequence[Tensor | None], attributes: PagedAttentionAttributes) -> list[Tensor]:
    """Attend one token of one head at a time; rows of padding stay zero.

    q [B, N, S, H], pools [P, K, page, H], new keys and values [B, K, S, H], page_table [B, n], cached_lengths [B],
    counts [B], sinks [N] -> [B, N, S, H]. Codes of quantized keys and values are multiplied by their scales.
    """
    sinks = inputs[_SINKS] if len(inputs) > _SINKS else None
    tensors = [x for x in inputs[:_SINKS] if x is not None]
    q, key_pool, value_pool, new_key, new_value, page_table, lengths, counts = tensors
    group = q.shape[1] // new_key.shape[1]
    y = torch.zeros_like(q)
    for row in range(len(q)):
        cached, count = int(lengths[row]), int(counts[row])
        key_codes = _contiguous(key_pool, page_table[row], cached, new_key[row, :, :count])
        value_codes = _contiguous(value_pool, page_table[row], cached, new_value[row, :, :count])
        keys, values = key_codes.to(q) * attributes.key_scale, value_codes.to(q) * attributes.value_scale
        for head in range(q.shape[1]):
            sink = None if sinks is None else sinks[head]
            for token in range(count):
                end = cached + token + 1
                seen = slice(max(0, end - attributes.window) if attributes.window else 0, end)
                scores = keys[head // group, seen] @ q[row, head, token]
                y[row, head, token] = _weights(scores, sink, attributes.softcap) @ values[head // group, seen]
    return [y]


def _contiguous(pool: Tensor, pages: Tensor, cached: int, new: Tensor) -> Tensor:
    """Return one sequence's keys or values, cached, then new: [K, cached + count, H]."""
    pages_in_order = torch.cat([pool[page] for page in pages.tolist()], 1)
    return torch.cat([pages_in_order[:, :cached], new], 1)


def _weights(scores: Tensor, sink: Tensor | None, softcap: float) -> Tensor:
    """Return the softmax weight of each key. sink: a score without a value."""
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if sink is None:
        return torch.softmax(scores, 0)
    return torch.softmax(torch.cat([scores, sink[None]]), 0)[:-1]
