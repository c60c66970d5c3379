"""Attention: its masks, the update of a KV cache, rotary embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference.layer import Layer, Lowered, Op, Tensor, sizes
from trtkit.reference.layers.product import FEW_ROWS
from trtkit.reference.layers.quantization import FP8_MAX

QKV = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""


# Shapes: B sequences, S new tokens, T cached tokens, N query heads, K key/value heads, H head size.


@dataclass(frozen=True)
class _AttentionForm:
    """The computation of an IAttention.

    quantize: rounds the normalized scores as their quantized type would, or None.
    """

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


def attention(layer: Layer) -> Lowered:
    """Compute softmax(Q K^T + mask) V; the network itself scales Q.

    Inputs: q, k, v, mask, normalization scale, query lengths, key/value lengths. Query heads share key/value heads in
    order. A bool mask permits attention where it is true; a float mask is added. Packed tensors [tokens, heads, H] come
    with cumulative lengths [B + 1]. A row that may attend to nothing yields zeros.

    With lengths, LOWER_RIGHT is anchored at each sequence's own length, the only useful interpretation for a fixed
    cache; NVIDIA's text does not settle it. Source: IAttention and CausalMaskKind in NvInfer.h.
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
    unconverted = replace(form, compute=dtype)  # torch's kernel converts fp16 block by block, and adds in fp32
    once = layer.settings.memo.once

    def run(q: Tensor, k: Tensor, v: Tensor, *optional: Tensor | None) -> Tensor:
        return attend((q, k, v), _Optional(*optional[:4]), form)

    def fast(q: Tensor, k: Tensor, v: Tensor, *optional: Tensor | None) -> Tensor:
        is_few = not form.query_packed and q.shape[2] * q.shape[1] <= FEW_ROWS * k.shape[1]
        reads_cache = is_few and q.shape[-1] == v.shape[-1]  # other forms torch computes in the type itself
        return attend((q, k, v), _Optional(*optional[:4]), unconverted if reads_cache else form)

    def attend(qkv: QKV, extra: _Optional, form: _AttentionForm) -> Tensor:
        q, k, v = qkv
        if not q.numel():  # of no rows, as a packed step without prompts has
            return q.new_empty(*q.shape[:-1], v.shape[-1])
        if form.query_packed or form.key_packed:
            q, k, v = (item.to(form.compute) for item in (q, k, v))
            return _packed((q, k, v), extra, form).to(dtype)
        blocks = once(visible_blocks, extra.mask, extra.key_lengths, _sizes(q, k, form))
        return _padded((q, k, v), blocks, extra.scale, form).to(dtype)

    is_fused = form.is_softmax and form.quantize is None and not form.key_packed
    return Lowered(run, packed=fast if is_fused and form.compute != dtype else None)


def _normalization_rounding(layer: Layer) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that applies the rounding of quantizing and dequantizing the normalized scores."""
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
    if len(blocks) == 1 or any(block.picked is not None for block in blocks):
        parts = []
        for block in blocks:
            q, k, v = (item.to(form.compute) for item in block.of(qkv))
            parts.append(_attend((q, k, v), block.mask, scale, form))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    longest = max(block.columns for block in blocks)
    q, k, v = (item.to(form.compute) for item in (qkv[0], qkv[1][:, :, :longest], qkv[2][:, :, :longest]))
    return torch.cat([_attend(block.of((q, k, v)), block.mask, scale, form) for block in blocks], 2)


def _attend(qkv: QKV, mask: Tensor | None, scale: Tensor | None, form: _AttentionForm) -> Tensor:
    """Attend from each row to all columns. Query heads that share a key/value head become rows of one head."""
    q, k, v = qkv
    if q.shape[1] == k.shape[1]:
        return _scores_times_values(qkv, mask, scale, form)
    rows = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    return _scores_times_values((rows, k, v), mask, scale, form).reshape(q.shape)


def _scores_times_values(qkv: QKV, mask: Tensor | None, scale: Tensor | None, form: _AttentionForm) -> Tensor:
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


# Shapes: B sequences, S new tokens, T cached tokens, N query heads, K key/value heads.

_FEW = 2
"""Columns are selected, which copies them, if at most one in this many is needed."""
_BLOCK_ROWS = 128
"""Rows per block: fewer make too many small products, more read columns that only some rows need; measured."""


@dataclass(frozen=True)
class MaskSizes:
    """The properties a mask depends on.

    group: query heads per key/value head. dtype: of scores. causal: CausalMaskKind.
    """

    rows: int
    columns: int
    heads: int
    group: int
    dtype: torch.dtype
    causal: str
    device: torch.device


@dataclass(frozen=True)
class Block:
    """A block of query rows, the first key columns that they may attend to, and the mask for both.

    picked: the columns that they may attend to, if these are few; None for all of the first columns.
    """

    rows: slice
    columns: int
    mask: Tensor | None
    picked: Tensor | None = None

    def of(self, qkv: QKV) -> QKV:
        """Return the block's part of queries, keys and values."""
        q, k, v = qkv
        columns = slice(self.columns) if self.picked is None else self.picked
        return q[:, :, self.rows], k[:, :, columns], v[:, :, columns]


def visible_blocks(mask: Tensor | None, lengths: Tensor | None, to: MaskSizes) -> list[Block]:
    """Return the blocks that mask, causality and lengths together make visible, shared by layers of the same sizes.

    Columns after the last one visible to any row of a block are dropped: they would get no weight. This is not done on
    a GPU, since it would require synchronization.
    """
    columns, is_on_cpu = to.columns, to.device.type == "cpu"
    if lengths is not None and is_on_cpu:
        columns = min(columns, max(int(lengths.max()), 1))
        mask = mask if mask is None or mask.shape[-1] == 1 else mask[..., :columns]
    combined = _combined_mask(mask, lengths, columns, to)
    if combined is None:
        return [Block(slice(None), columns, None)]
    if not is_on_cpu or combined.dtype != torch.bool or combined.shape[-1] != columns:
        return [Block(slice(None), columns, _rows_of_groups(combined, to.rows, to))]
    size = _BLOCK_ROWS if combined.shape[2] == to.rows > _BLOCK_ROWS else max(to.rows, 1)
    starts = range(0, max(to.rows, 1), size)
    return [_block(combined[:, :, start : start + size], slice(start, start + size), to) for start in starts]


def _block(mask: Tensor, rows: slice, to: MaskSizes) -> Block:
    """Return a block of rows without the columns after the last one visible to any of them; at least one is kept."""
    used = mask.flatten(0, -2).any(0).nonzero().flatten()
    columns = int(used[-1]) + 1 if len(used) else 1
    count = min(rows.stop, to.rows) - rows.start
    picked = used if 0 < len(used) < columns // _FEW else None
    seen = mask[..., :columns] if picked is None else mask[..., picked]
    return Block(rows, columns, _rows_of_groups(seen, count, to), picked)


def _rows_of_groups(mask: Tensor, rows: int, to: MaskSizes) -> Tensor:
    """Return a mask [B, N or 1, S or 1, T] for queries whose heads became rows: [B, K or 1, group * S or 1, T]."""
    if to.group == 1 or mask.shape[1:3] == (1, 1):
        return mask
    mask = mask.expand(-1, -1, rows, -1)
    if mask.shape[1] > 1:
        return mask.reshape(mask.shape[0], to.heads, to.group * rows, -1)
    return mask.repeat(1, 1, to.group, 1)


def _combined_mask(mask: Tensor | None, lengths: Tensor | None, columns: int, to: MaskSizes) -> Tensor | None:
    """Return mask, causality and lengths combined: true where a row may attend, or the values to add."""
    allowed = _allowed(lengths, columns, to)
    if mask is None or allowed is None:
        return allowed if mask is None else mask if mask.dtype == torch.bool else mask.to(to.dtype)
    if mask.dtype == torch.bool:
        return mask & allowed
    return torch.where(allowed, mask.to(to.dtype), -float("inf"))


def _allowed(lengths: Tensor | None, columns: int, to: MaskSizes) -> Tensor | None:
    """Return the positions permitted by causality and lengths, [B or 1, 1, S or 1, columns]; None if all are."""
    column = torch.arange(columns, device=to.device)
    allowed = None if lengths is None else (column < lengths.reshape(-1, 1)).reshape(-1, 1, 1, columns)
    if to.causal == "NONE":
        return allowed
    row = torch.arange(to.rows, device=to.device).reshape(1, 1, -1, 1)
    if to.causal == "LOWER_RIGHT":
        row = row + ((columns if lengths is None else lengths.reshape(-1, 1, 1, 1)) - to.rows)
    causal = column <= row
    return causal if allowed is None else allowed & causal


# Shapes: B sequences, S new tokens, T cached tokens, K key/value heads, H head size.


def kv_cache_update(layer: Layer) -> Op:
    """Write new keys or values into a cache [B, K, T, H], from position write_indices[b] of each sequence on.

    Inputs: cache, update [B, K, S, H] or packed [tokens, K, H], write indices [B], cumulative update lengths.
    TensorRT's output shares the cache's memory; here it does so if the executor is told to, otherwise it is a copy.
    Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/KVCacheUpdate.html
    """
    in_place, once = layer.settings.in_place_caches, layer.settings.memo.once
    is_packed = layer.option("update_form") == "PACKED_NHD"

    def run(cache: Tensor, update: Tensor, write_indices: Tensor, lengths: Tensor | None = None) -> Tensor:
        cache = cache if in_place else cache.clone()
        if cache.device.type != "cpu" and not is_packed:  # a device is not waited for: torch checks positions there
            cache.transpose(1, 2)[once(_places, write_indices, update.shape[2])] = update.transpose(1, 2)
            return cache
        starts = once(sizes, write_indices)
        if is_packed and lengths is not None:
            _write_packed(cache, update, starts, once(sizes, lengths))
            return cache
        if not starts:
            return cache
        _check(max(starts), min(starts), update.shape[2], cache)
        if len(starts) > 1 and update.shape[2] == 1:
            cache.transpose(1, 2)[once(_places, write_indices, 1)] = update.transpose(1, 2)
            return cache
        for index, first in enumerate(starts):
            cache[index, :, first : first + update.shape[2]] = update[index]
        return cache

    return run


def _places(write_indices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the sequence [B, 1] and the positions [B, S] of each sequence's new tokens."""
    sequence, new = (torch.arange(size, device=write_indices.device) for size in (len(write_indices), count))
    return sequence[:, None], write_indices.long()[:, None] + new


def _write_packed(cache: Tensor, update: Tensor, starts: list[int], ends: list[int]) -> None:
    """Write update [tokens, K, H]; sequence b's tokens are those from ends[b] to ends[b + 1]."""
    for index, first in enumerate(starts):
        one = update[ends[index] : ends[index + 1]].transpose(0, 1)
        _check(first, first, one.shape[1], cache)
        cache[index, :, first : first + one.shape[1]] = one


def _check(last: int, first: int, count: int, cache: Tensor) -> None:
    """Raise IndexError if `count` tokens from position `first` or `last` on do not fit."""
    if first < 0 or last + count > cache.shape[2]:
        at = first if first < 0 else last
        raise IndexError(f"{count} tokens at {at} do not fit a cache of {cache.shape[2]}")


# Shapes: B sequences, S tokens, N heads, H head size.


def rotary_embedding(layer: Layer) -> Op:
    """Rotate pairs of the first `rotary_embedding_dim` elements (0: all) of x [B, N, S, H] by angles of the position.

    Inputs: x, cos, sin as [positions, dim / 2] with position ids [B, S], or [B, S, dim / 2] without. Pairs are
    neighbors if interleaved, otherwise element i of the two halves. Source:
    https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/_static/operators/RotaryEmbedding.html
    """
    is_interleaved, stated = layer.flag("interleaved"), layer.number("rotary_embedding_dim")
    once, dtype = layer.settings.memo.once, layer.input_dtype()
    wide = torch.float32 if dtype.itemsize < 4 else dtype

    def run(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
        size = stated or x.shape[-1]
        rotated = x[..., :size].to(wide)
        cosines, sines = once(_angles, cos, sin, positions, wide, is_interleaved)
        turned = rotated * cosines
        (first, second), (new_first, new_second) = (_pairs(item, is_interleaved) for item in (rotated, turned))
        new_first.addcmul_(second, sines, value=-1)
        new_second.addcmul_(first, sines)
        turned = turned.to(dtype)
        return torch.cat((turned, x[..., size:]), -1) if size < x.shape[-1] else turned

    return run


def _angles(
    cos: Tensor, sin: Tensor, positions: Tensor | None, dtype: torch.dtype, is_interleaved: bool
) -> tuple[Tensor, Tensor]:
    """Return each token's cosines for both elements of the pairs [B, 1, S, dim] and sines [B, 1, S, dim / 2]."""
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = (item.to(dtype).unsqueeze(1) for item in (cos, sin))
    return cos.repeat_interleave(2, -1) if is_interleaved else torch.cat((cos, cos), -1), sin


def _pairs(x: Tensor, is_interleaved: bool) -> tuple[Tensor, Tensor]:
    """Return views of the first and the second element of each pair."""
    if is_interleaved:
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, -1)
    return first, second
