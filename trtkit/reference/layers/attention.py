"""Attention."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Op, Tensor, sizes
from trtkit.reference.layers.attention_mask import Block, MaskSizes, visible_blocks
from trtkit.reference.layers.quantization import FP8_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

QKV = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""

# Shapes: B sequences, S new tokens, T cached tokens, N query heads, K key/value heads, H head size.


@dataclass(frozen=True)
class _AttentionForm:
    """What an IAttention computes. quantize: rounds the normalized scores as their quantized type would, or None."""

    is_softmax: bool
    causal: str
    query_packed: bool
    key_packed: bool
    quantize: Callable[[Tensor, Tensor], Tensor] | None
    compute: torch.dtype


@dataclass(frozen=True)
class _Optional:
    """Inputs after q, k and v. scale: of the normalized scores. lengths: of sequences, cumulative if packed."""

    mask: Tensor | None = None
    scale: Tensor | None = None
    query_lengths: Tensor | None = None
    key_lengths: Tensor | None = None


def attention(layer: Layer) -> Op:
    """Compute softmax(Q K^T + mask) V; scaling Q is the network's business.

    Inputs: q, k, v, mask, normalization scale, query lengths, key/value lengths. Query heads share key/value heads
    in order. A bool mask lets attend where true, a float mask is added. Packed tensors [tokens, heads, H] come with
    cumulative lengths [B + 1]. A row with nothing to attend to gives zeros.

    With lengths, LOWER_RIGHT is anchored at each sequence's own length, the only reading of use for a fixed cache;
    NVIDIA's text does not settle it. Source: IAttention and CausalMaskKind in NvInfer.h.
    """
    dtype = layer.input_dtype()
    form = _AttentionForm(
        layer.option("norm_op") == "SOFTMAX",
        layer.option("causal_kind"),
        layer.option("query_form") == "PACKED_NHD",
        layer.option("key_value_form") == "PACKED_NHD",
        _normalization_rounding(layer) if layer.has_input(4) else None,
        layer.precision.accumulation(dtype),
    )

    once = layer.settings.memo.once

    def run(q: Tensor, k: Tensor, v: Tensor, *optional: Tensor | None) -> Tensor:
        extra = _Optional(*optional[:4])
        if form.query_packed or form.key_packed:
            q, k, v = (item.to(form.compute) for item in (q, k, v))
            return _packed((q, k, v), extra, form).to(dtype)
        blocks = once(visible_blocks, extra.mask, extra.key_lengths, _sizes(q, k, form))
        return _padded((q, k, v), blocks, extra.scale, form).to(dtype)

    return run


def _normalization_rounding(layer: Layer) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what quantizing and dequantizing the normalized scores does to them."""
    kind = layer.option("normalization_quantize_to_type")
    if kind == "INT8":
        return lambda x, scale: torch.round(x / scale).clamp(-128, 127) * scale
    if kind == "FP8":
        return lambda x, scale: (x / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(x.dtype) * scale
    raise layer.unsupported(f"normalization type {kind}")


def _packed(qkv: QKV, extra: _Optional, form: _AttentionForm) -> Tensor:
    """Attend sequence by sequence; the result has the query's layout."""
    q, k, v = qkv
    lengths = extra.key_lengths
    query_ends = None if extra.query_lengths is None or not form.query_packed else sizes(extra.query_lengths)
    key_ends = None if lengths is None or not form.key_packed else sizes(lengths)
    count = len(query_ends or key_ends or ()) - 1
    results = []
    for index in range(count):
        one_q = _sequence(q, query_ends, index)
        one_k, one_v = (_sequence(item, key_ends, index) for item in (k, v))
        length = lengths[index : index + 1] if lengths is not None and not form.key_packed else None
        mask = extra.mask
        if mask is not None:
            mask = mask[index : index + 1] if mask.shape[0] > 1 else mask
            mask = mask[..., : one_q.shape[2], : one_k.shape[2]]
        blocks = visible_blocks(mask, length, _sizes(one_q, one_k, form))
        results.append(_padded((one_q, one_k, one_v), blocks, extra.scale, form))
    if form.query_packed:
        return torch.cat([item[0].transpose(0, 1) for item in results])
    return torch.cat(results)


def _sequence(x: Tensor, ends: list[int] | None, index: int) -> Tensor:
    """Return one sequence as [1, heads, tokens, H]."""
    if ends is None:
        return x[index : index + 1]
    first, last = list(pairwise(ends))[index]
    return x[first:last].transpose(0, 1).unsqueeze(0)


def _sizes(q: Tensor, k: Tensor, form: _AttentionForm) -> MaskSizes:
    """Return the sizes of one attention over [B, heads, tokens, H]."""
    return MaskSizes(q.shape[2], k.shape[2], k.shape[1], q.shape[1] // k.shape[1], form.compute, form.causal, q.device)


def _padded(qkv: QKV, blocks: list[Block], scale: Tensor | None, form: _AttentionForm) -> Tensor:
    """Attend over [B, heads, tokens, H], block by block."""
    longest = max(block.columns for block in blocks)
    q, k, v = (item.to(form.compute) for item in (qkv[0], qkv[1][:, :, :longest], qkv[2][:, :, :longest]))
    if len(blocks) == 1:
        return _attend((q, k, v), blocks[0].mask, scale, form)
    parts = [
        _attend((q[:, :, block.rows], k[:, :, : block.columns], v[:, :, : block.columns]), block.mask, scale, form)
        for block in blocks
    ]
    return torch.cat(parts, 2)


def _attend(qkv: QKV, mask: Tensor | None, scale: Tensor | None, form: _AttentionForm) -> Tensor:
    """Attend with each row to all columns. Query heads that share a key/value head become rows of one head."""
    q, k, v = qkv
    if q.shape[1] == k.shape[1]:
        return _scores_times_values(qkv, mask, scale, form)
    rows = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    return _scores_times_values((rows, k, v), mask, scale, form).reshape(q.shape)


def _scores_times_values(qkv: QKV, mask: Tensor | None, scale: Tensor | None, form: _AttentionForm) -> Tensor:
    """Return normalized scores times values."""
    q, k, v = qkv
    if form.is_softmax and form.quantize is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    scores = q @ k.mT
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -float("inf") if form.is_softmax else 0.0)
    elif mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, -1).nan_to_num(0.0) if form.is_softmax else scores
    if form.quantize is not None and scale is not None:
        weights = form.quantize(weights, scale.to(weights.dtype))
    return weights @ v
