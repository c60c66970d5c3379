"""Attention, KV-cache update and rotary embedding."""

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


Optionals = tuple[Tensor | None, Tensor | None]


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

    def run(q: Tensor, k: Tensor, v: Tensor, *given: Tensor | None) -> Tensor:
        mask, scale, query_lengths, key_lengths = (*given, None, None, None, None)[:4]
        wide = [item.to(form.compute) for item in (q, k, v)]
        if form.query_packed or form.key_packed:
            return _packed(wide, (query_lengths, key_lengths), (mask, scale), form).to(dtype)
        return _padded(wide, key_lengths, (mask, scale), form).to(dtype)

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
    extra: Optionals,
    form: _Form,
) -> Tensor:
    """Attend sequence by sequence; the result has the query's layout."""
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
        results.append(_padded([one_q, one_k, one_v], own, (mask, extra[1]), form))
    if form.query_packed:
        return torch.cat([item[0].transpose(0, 1) for item in results])
    return torch.cat(results)


def _sequence(x: Tensor, ends: list[int] | None, index: int) -> Tensor:
    """Return one sequence as [1, heads, tokens, H]."""
    if ends is None:
        return x[index : index + 1]
    first, last = list(pairwise(ends))[index]
    return x[first:last].transpose(0, 1).unsqueeze(0)


def _padded(qkv: list[Tensor], lengths: Tensor | None, extra: Optionals, form: _Form) -> Tensor:
    """Attend over [B, heads, tokens, H]. Query heads that share a key/value head become rows of one head."""
    q, k, v = qkv
    mask = extra[0]
    if lengths is not None:
        longest = int(lengths.max())
        k, v = k[:, :, :longest], v[:, :, :longest]
        mask = mask if mask is None or mask.shape[-1] == 1 else mask[..., :longest]
    group = q.shape[1] // k.shape[1]
    mask = _combined_mask(mask, lengths, (q, k), form)
    if group > 1:
        mask = mask if mask is None else _rows_of_groups(mask, (k.shape[1], group, q.shape[2]))
        q, shape = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3]), q.shape
        return _scores_times_values((q, k, v), mask, extra[1], form).reshape(shape)
    return _scores_times_values((q, k, v), mask, extra[1], form)


def _rows_of_groups(mask: Tensor, form: tuple[int, int, int]) -> Tensor:
    """Return a mask [B, N or 1, S or 1, T] for queries whose heads became rows: [B, K or 1, group * S, T]."""
    heads, group, rows = form
    mask = mask.expand(-1, -1, rows, -1)
    if mask.shape[1] > 1:
        return mask.reshape(mask.shape[0], heads, group * rows, -1)
    return mask.repeat(1, 1, group, 1)


def _combined_mask(
    mask: Tensor | None, lengths: Tensor | None, qk: tuple[Tensor, Tensor], form: _Form
) -> Tensor | None:
    """Return the mask of mask, causality and lengths together."""
    q, k = qk
    column = torch.arange(k.shape[2], device=q.device)
    allowed = None if lengths is None else (column < lengths.reshape(-1, 1)).reshape(-1, 1, 1, k.shape[2])
    if form.causal != "NONE":
        row = torch.arange(q.shape[2], device=q.device).reshape(-1, 1)
        if form.causal == "LOWER_RIGHT":
            end = torch.tensor(k.shape[2], device=q.device) if lengths is None else lengths
            row = row + (end.reshape(-1, 1, 1, 1) - q.shape[2])
        causal = column <= row
        causal = causal if causal.dim() == 4 else causal.reshape(1, 1, *causal.shape)
        allowed = causal if allowed is None else allowed & causal
    if mask is None or allowed is None:
        return allowed if mask is None else mask if mask.dtype == torch.bool else mask.to(q.dtype)
    if mask.dtype == torch.bool:
        return mask & allowed
    return torch.where(allowed, mask.to(q.dtype), -float("inf"))


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


def kv_cache_update(layer: Layer) -> Op:
    """Write new keys or values into a cache [B, K, T, H] from position write_indices[b] of each sequence on.

    Inputs: cache, update [B, K, S, H] or packed [tokens, K, H], write indices [B], cumulative update lengths.
    TensorRT's output shares the cache's memory; here it does where the executor was told so, else it is a copy.
    Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/KVCacheUpdate.html
    """
    in_place = layer.settings.in_place_caches
    is_packed = layer.option("update_form") == "PACKED_NHD"

    def run(cache: Tensor, update: Tensor, write_indices: Tensor, lengths: Tensor | None = None) -> Tensor:
        cache = cache if in_place else cache.clone()
        ends = None if lengths is None or not is_packed else sizes(lengths)
        for index, first in enumerate(sizes(write_indices)):
            one = _sequence(update, ends, index)[0]
            count = one.shape[1]
            if first < 0 or first + count > cache.shape[2]:
                raise IndexError(f"{count} tokens at {first} do not fit a cache of {cache.shape[2]}")
            cache[index, :, first : first + count] = one
        return cache

    return run


def rotary_embedding(layer: Layer) -> Op:
    """Rotate pairs of the first `rotary_embedding_dim` elements (0: all) of x [B, N, S, H] by angles of the position.

    Inputs: x, cos, sin as [positions, dim / 2] with position ids [B, S], or [B, S, dim / 2] without. Pairs are
    neighbours when interleaved, else element i of the two halves.
    Source: https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/_static/operators/RotaryEmbedding.html
    """
    is_interleaved, stated = bool(layer.trt.interleaved), int(layer.trt.rotary_embedding_dim)
    dtype = layer.input_dtype()
    wide = torch.float32 if dtype.itemsize < 4 else dtype

    def run(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
        size = stated or x.shape[-1]
        if positions is not None:
            cos, sin = cos[positions], sin[positions]
        cos, sin = (item.to(wide).unsqueeze(1) for item in (cos, sin))  # [B, 1, S, size / 2]
        rotated, rest = x[..., :size].to(wide), x[..., size:]
        pairs = (rotated[..., ::2], rotated[..., 1::2]) if is_interleaved else rotated.chunk(2, -1)
        first, second = pairs[0] * cos - pairs[1] * sin, pairs[0] * sin + pairs[1] * cos
        turned = torch.stack((first, second), -1).flatten(-2) if is_interleaved else torch.cat((first, second), -1)
        return torch.cat((turned.to(dtype), rest), -1) if rest.shape[-1] else turned.to(dtype)

    return run
