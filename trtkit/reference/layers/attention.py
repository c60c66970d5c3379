"""Attention."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Op, Tensor, sizes
from trtkit.reference.layers.quantization import FP8_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

# Shapes: B sequences, S new tokens, T cached tokens, N query heads, K key/value heads, H head size.


@dataclass(frozen=True)
class _Form:
    """What an IAttention computes. quantize: rounds the normalized scores as their quantized type would, or None."""

    is_softmax: bool
    causal: str
    query_packed: bool
    key_packed: bool
    quantize: Callable[[Tensor, Tensor], Tensor] | None
    compute: torch.dtype


def attention(layer: Layer) -> Op:
    """Compute softmax(Q K^T + mask) V; scaling Q is the network's business.

    Inputs: q, k, v, mask, normalization scale, query lengths, key/value lengths. Query heads share key/value heads
    in order. A bool mask lets attend where true, a float mask is added. Packed tensors [tokens, heads, H] come with
    cumulative lengths [B + 1]. A row with nothing to attend to gives zeros.

    With lengths, LOWER_RIGHT is anchored at each sequence's own length, the only reading of use for a fixed cache;
    NVIDIA's text does not settle it. Source: IAttention and CausalMaskKind in NvInfer.h.
    """
    dtype = layer.input_dtype()
    form = _Form(
        layer.option("norm_op") == "SOFTMAX",
        layer.option("causal_kind"),
        layer.option("query_form") == "PACKED_NHD",
        layer.option("key_value_form") == "PACKED_NHD",
        _normalization_rounding(layer) if layer.has_input(4) else None,
        layer.precision.accumulation(dtype),
    )

    once = layer.settings.memo.once

    def run(q: Tensor, k: Tensor, v: Tensor, *given: Tensor | None) -> Tensor:
        mask, scale, query_lengths, key_lengths = (*given, None, None, None, None)[:4]
        if form.query_packed or form.key_packed:
            wide = [item.to(form.compute) for item in (q, k, v)]
            return _packed(wide, (query_lengths, key_lengths), (mask, scale), form).to(dtype)
        reach = once(_reach, mask, key_lengths, _sizes(q, k, form))
        return _padded((q, k, v), reach, scale, form).to(dtype)

    return run


def _normalization_rounding(layer: Layer) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what quantizing and dequantizing the normalized scores does to them."""
    kind = str(layer.trt.normalization_quantize_to_type.name)
    if kind == "INT8":
        return lambda x, scale: torch.round(x / scale).clamp(-128, 127) * scale
    if kind == "FP8":
        return lambda x, scale: (x / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(x.dtype) * scale
    raise layer.unsupported(f"normalization type {kind}")


def _packed(
    qkv: list[Tensor],
    lengths: tuple[Tensor | None, Tensor | None],
    extra: tuple[Tensor | None, Tensor | None],
    form: _Form,
) -> Tensor:
    """Attend sequence by sequence; the result has the query's layout. extra: mask, normalization scale."""
    q, k, v = qkv
    query_ends = None if lengths[0] is None or not form.query_packed else sizes(lengths[0])
    key_ends = None if lengths[1] is None or not form.key_packed else sizes(lengths[1])
    count = len(query_ends or key_ends or ()) - 1
    results = []
    for index in range(count):
        one_q = _sequence(q, query_ends, index)
        one_k, one_v = (_sequence(item, key_ends, index) for item in (k, v))
        own = lengths[1][index : index + 1] if lengths[1] is not None and not form.key_packed else None
        mask = extra[0]
        if mask is not None:
            mask = mask[index : index + 1] if mask.shape[0] > 1 else mask
            mask = mask[..., : one_q.shape[2], : one_k.shape[2]]
        reach = _reach(mask, own, _sizes(one_q, one_k, form))
        results.append(_padded((one_q, one_k, one_v), reach, extra[1], form))
    if form.query_packed:
        return torch.cat([item[0].transpose(0, 1) for item in results])
    return torch.cat(results)


def _sequence(x: Tensor, ends: list[int] | None, index: int) -> Tensor:
    """Return one sequence as [1, heads, tokens, H]."""
    if ends is None:
        return x[index : index + 1]
    first, last = list(pairwise(ends))[index]
    return x[first:last].transpose(0, 1).unsqueeze(0)


@dataclass(frozen=True)
class _Sizes:
    """What a mask is made for. group: query heads per key/value head. dtype: of scores. causal: CausalMaskKind."""

    rows: int
    columns: int
    heads: int
    group: int
    dtype: torch.dtype
    causal: str


def _sizes(q: Tensor, k: Tensor, form: _Form) -> _Sizes:
    """Return the sizes of one attention over [B, heads, tokens, H]."""
    return _Sizes(q.shape[2], k.shape[2], k.shape[1], q.shape[1] // k.shape[1], form.compute, form.causal)


def _reach(mask: Tensor | None, lengths: Tensor | None, to: _Sizes) -> tuple[Tensor | None, int]:
    """Return the mask of mask, causality and lengths together, and how many columns of the keys it is for.

    Columns behind the last that any row may attend to are left out: they would get no weight. One at least stays.
    Layers with the same mask and sizes share the result.
    """
    columns = to.columns
    if lengths is not None:
        columns = min(columns, max(int(lengths.max()), 1))
        mask = mask if mask is None or mask.shape[-1] == 1 else mask[..., :columns]
    combined = _combined_mask(mask, lengths, columns, to)
    if combined is None:
        return None, columns
    if combined.dtype == torch.bool and combined.shape[-1] == columns:
        columns = _used_columns(combined)
        combined = combined[..., :columns]
    return (_rows_of_groups(combined, to) if to.group > 1 else combined), columns


def _used_columns(mask: Tensor) -> int:
    """Return the number of columns up to the last that is true in any row, at least 1."""
    used = mask.flatten(0, -2).any(0).nonzero()
    return int(used[-1]) + 1 if len(used) else 1


def _rows_of_groups(mask: Tensor, to: _Sizes) -> Tensor:
    """Return a mask [B, N or 1, S or 1, T] for queries whose heads became rows: [B, K or 1, group * S or 1, T]."""
    if mask.shape[1:3] == (1, 1):
        return mask
    mask = mask.expand(-1, -1, to.rows, -1)
    if mask.shape[1] > 1:
        return mask.reshape(mask.shape[0], to.heads, to.group * to.rows, -1)
    return mask.repeat(1, 1, to.group, 1)


def _combined_mask(mask: Tensor | None, lengths: Tensor | None, columns: int, to: _Sizes) -> Tensor | None:
    """Return the mask of mask, causality and lengths together: true where a row may attend, or what is added."""
    allowed = _allowed(lengths, columns, to)
    if mask is None or allowed is None:
        return allowed if mask is None else mask if mask.dtype == torch.bool else mask.to(to.dtype)
    allowed = allowed.to(mask.device)
    if mask.dtype == torch.bool:
        return mask & allowed
    return torch.where(allowed, mask.to(to.dtype), -float("inf"))


def _allowed(lengths: Tensor | None, columns: int, to: _Sizes) -> Tensor | None:
    """Return what causality and lengths allow, [B or 1, 1, S or 1, columns]; None where that is all."""
    device = None if lengths is None else lengths.device
    column = torch.arange(columns, device=device)
    allowed = None if lengths is None else (column < lengths.reshape(-1, 1)).reshape(-1, 1, 1, columns)
    if to.causal == "NONE":
        return allowed
    row = torch.arange(to.rows, device=device).reshape(1, 1, -1, 1)
    if to.causal == "LOWER_RIGHT":
        end = torch.tensor(columns) if lengths is None else lengths
        row = row + (end.reshape(-1, 1, 1, 1) - to.rows)
    causal = column <= row
    return causal if allowed is None else allowed & causal


def _padded(
    qkv: tuple[Tensor, Tensor, Tensor], reach: tuple[Tensor | None, int], scale: Tensor | None, form: _Form
) -> Tensor:
    """Attend over [B, heads, tokens, H]. Query heads that share a key/value head become rows of one head."""
    mask, columns = reach
    q, k, v = (item.to(form.compute) for item in (qkv[0], qkv[1][:, :, :columns], qkv[2][:, :, :columns]))
    mask = mask if mask is None else mask.to(q.device)
    if q.shape[1] == k.shape[1]:
        return _scores_times_values((q, k, v), mask, scale, form)
    rows = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    return _scores_times_values((rows, k, v), mask, scale, form).reshape(q.shape)


def _scores_times_values(
    qkv: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, scale: Tensor | None, form: _Form
) -> Tensor:
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
