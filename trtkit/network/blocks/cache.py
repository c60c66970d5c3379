"""What a layer reads in addition to hidden states: cached tokens, recurrent states, positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.network.ops.kv_cache import append, append_quantized, quantized, update_cache
from trtkit.network.ops.rotary import rotary_embedding
from trtkit.network.ops.shape import take_as_many

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.attention import RopeSpec
    from trtkit.network.blocks.rows import Rows
    from trtkit.network.graph import Tensor
    from trtkit.network.ops.kv_cache import CacheIndex
    from trtkit.network.ops.paged_attention import Pages
    from trtkit.network.ops.recurrence import TokenChunk
    from trtkit.network.ops.rotary import RotaryTables


@dataclass(frozen=True, eq=False)
class Past:
    """Caches of some rows of a layer [B, K, T, H] by name, and the write index of each sequence's new tokens [B].

    rows: the rows that they belong to.
    shared: of the layer whose caches this one reads, if it has none of its own.
    scales: of 8-bit caches.
    window: [T'], positions of the cached tokens that attention reads, from 0 on; None if it reads all T.
    index: of the rows' tokens, if the caches are page pools, which are read-only.
    pages: what attention reads in place, of its own caches or of shared ones; None if it reads copies of pages.
    is_expanded: whether a step computes each head's keys and values from cached latent vectors.
    is_appended: whether the caches are read-only, and attention reads new keys and values after them.
    is_apart: whether it does so without a copy that joins them.
    read: set by `remember` to what attention reads, for layers that share it; with `pages`, only the new keys and
        values, as they are cached.
    apart: the new keys and values, if attention reads them separately.
    """

    rows: Rows
    caches: Mapping[str, Tensor]
    write_indices: Tensor
    shared: Past | None = None
    scales: Mapping[str, float] | None = None
    window: Tensor | None = None
    index: CacheIndex | None = None
    pages: Pages | None = None
    is_expanded: bool = False
    is_appended: bool = False
    is_apart: bool = False
    read: dict[str, Tensor] = field(default_factory=dict)
    apart: dict[str, Tensor] = field(default_factory=dict)


def remember(past: Past, new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Set `past.read` to all that attention reads, by cache; return the updates of the caches.

    new: of all of the call's tokens, [B, K, S, H].
    """
    if past.shared is not None:
        past.read.update(past.shared.read)
        past.apart.update(past.shared.apart)
    kept = {}
    for name, cache in past.caches.items():
        with cache.graph.scope(f"past_{past.rows.prefix}{name}"):
            past.read[name], kept[f"{past.rows.prefix}{name}"] = _read_and_kept(past, name, new[name])
    return kept


def _read_and_kept(past: Past, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what attention reads from a cache, and the cache's update. x: the new keys or values of all tokens."""
    cache, rows, scale = past.caches[name], past.rows, None if past.scales is None else past.scales[name]
    new = rows.new(x)
    if not past.is_appended:
        updated = update_cache(cache, new, past.write_indices)
        return (updated if past.window is None else take_as_many(updated, 2, past.window)), updated
    if past.pages is not None:
        kept = read = new if scale is None else quantized(cache, new, scale)
    elif past.is_apart:
        read, kept = cache if past.index is None else past.index.of(cache), new
        past.apart[name] = new
    elif scale is not None:
        read, kept = append_quantized(cache, past.index, new, scale, past.window)
    else:
        read, kept = append(cache if past.index is None else past.index.of(cache), new), new
    if rows.is_padded:
        unpadded = rows.unpadded(x)
        kept = unpadded if scale is None else quantized(cache, unpadded, scale)
    return read, kept


@dataclass(frozen=True, eq=False)
class States:
    """The states [B, ...] of some rows of a layer by name, zeros where a sequence starts.

    rows: the rows that they belong to. token_counts: [B], number of each row's new tokens; the rest is padding, which
    no state may read. chunk: the new tokens, for layers that take a limited number of them at once.
    """

    rows: Rows
    arrays: Mapping[str, Tensor]
    token_counts: Tensor
    chunk: TokenChunk


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions of tokens.

    ids: None if nothing is looked up by position.
    tables: cosines and sines of the layer's rotary embedding, by position or, if image tokens rotate differently
        (M-RoPE), by token (is_by_token); None if it has none.
    query_scaling: [B, 1, S, 1] in fp32, scaling factors of the queries; None if there are none.
    """

    ids: Tensor | None
    tables: RotaryTables | None = None
    query_scaling: Tensor | None = None
    is_by_token: bool = False


@dataclass(frozen=True, eq=False)
class Reach:
    """What the tokens of some rows attend to. past: their caches.

    mask: as in `ops.attention`; None if pages are read in place. fold: number of heads that share keys and follow one
    another in the mask's rows, [B, 1, fold * S, T]. kv_lengths: None if the attention layer does not use them.
    """

    past: Past
    mask: Tensor | None
    fold: int = 1
    kv_lengths: Tensor | None = None


def rotate(name: str, x: Tensor, rope: RopeSpec | None, positions: Positions) -> Tensor:
    """Rotate x [B, heads, S, H] by its positions, if the layer does."""
    if rope is None or positions.tables is None:
        return x
    with x.graph.scope(name):
        ids = None if positions.is_by_token else positions.ids
        return rotary_embedding(x, positions.tables, ids, rope.dim, is_interleaved=rope.is_interleaved)
