"""Inputs of a decoder's layers other than hidden states: positions, caches and recurrent states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import DTYPES, FP32, INT32
from trtkit.models.attention import AttentionSpec
from trtkit.models.context import ALL_POSITIONS, context_of
from trtkit.network.blocks.attention import Encoded
from trtkit.network.blocks.cache import Past, Positions, Reach, States
from trtkit.network.blocks.mixer import Attending
from trtkit.network.blocks.rows import AllRows, DecodingRows, PromptRows
from trtkit.network.input_spec import (
    BATCH,
    DECODE_POSITION_IDS,
    ENCODED,
    ENCODED_MASK,
    MOST_ROW_TOKENS,
    NEW_TOKENS,
    ONE,
    PROMPT,
    PROMPT_PLACES,
    PROMPTS,
    TOKENS,
    Axis,
    InputSpec,
)
from trtkit.network.ops.arithmetic import cast, select
from trtkit.network.ops.gather import embedding, entries, pick
from trtkit.network.ops.kv_cache import index_of_pages, index_of_tokens
from trtkit.network.ops.mask import (
    alibi_mask,
    alibi_slopes,
    appended_positions,
    cached_positions,
    causal_mask,
    chunk_mask,
    lowest,
    relative_mask,
    tree_mask,
    tree_places,
)
from trtkit.network.ops.paged_attention import PageRows, Pages
from trtkit.network.ops.quantize import rounded
from trtkit.network.ops.recurrence import TokenChunk
from trtkit.network.ops.shape import concat, reshape, take, unsqueeze
from trtkit.network.paged_layers import layers_in_place, op_attributes
from trtkit.network.rope_tables import distance_buckets, query_scaling_table, rope_tables, section_axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.dtypes import DType
    from trtkit.models.attention import CrossSpec, QueryScaling, RelativeSpec, RopeSpec
    from trtkit.models.context import ContextShare
    from trtkit.models.recurrent import RecurrentSpec, StateSpec
    from trtkit.models.share import Share
    from trtkit.models.spec import DecoderSpec, LayerSpec
    from trtkit.network.blocks.mixer import Memory
    from trtkit.network.blocks.rows import Rows
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.input_spec import Feeder
    from trtkit.network.ops.kv_cache import CacheIndex

    _MaskKind = tuple[int | None, int | None, tuple[int, Share, float] | None, RelativeSpec | None, int]


class LayerInputs:
    """Adds each layer's caches and states, and masks and rotary tables, which layers share."""

    def __init__(self, weights: Weights, options: DecoderOptions, inputs: ScheduledInputs) -> None:
        self._weights, self._graph, self._options, self._inputs = weights, weights.graph, options, inputs
        self._rows: list[RowInputs] = []
        for rows in inputs.rows:
            self._rows.append(RowInputs(weights, options, rows, inputs.in_place, self._rows[:1]))
        self._tables: list[tuple[RopeSpec, tuple[Tensor, Tensor]]] = []
        self._query_scalings: dict[QueryScaling, Tensor] = {}

    def of(self, index: int, layer: LayerSpec) -> Memory | None:
        """Return the inputs of a layer's mixer; None if it has no mixer."""
        with self._graph.scope(f"layers.{index}"):
            recurrent = layer.recurrent
            states = () if recurrent is None else tuple(rows.states(index, recurrent) for rows in self._rows)
            if isinstance(layer.mixer, AttentionSpec):
                cross, attention = layer.cross, layer.mixer
                encoded = () if cross is None else tuple(rows.encoded(index, cross) for rows in self._rows)
                positions = self._positions(attention)
                reaches = tuple(rows.reach(index, attention) for rows in self._rows)
                return Attending(positions, reaches, encoded, states)
            return states or None

    def _positions(self, attention: AttentionSpec) -> Positions:
        tables = None if attention.rope is None else self._rope(attention.rope)
        scaling = None if attention.query_scaling is None else self._query_scaling(attention.query_scaling)
        is_by_token = bool(attention.rope and attention.rope.sections and self._inputs.rope_position_ids is not None)
        return Positions(self._inputs.position_ids, tables, scaling, is_by_token)

    def _rope(self, rope: RopeSpec) -> tuple[Tensor, Tensor]:
        """Return cosines and sines."""
        for known, tables in self._tables:
            if known == rope:
                return tables
        arrays = rope_tables(rope, self._options.max_sequence_length)
        with self._graph.scope("rope"):
            cos, sin = (
                self._graph.constant(array, role, self._options.dtype)
                for array, role in zip(arrays, ("cos", "sin"), strict=True)
            )
            if rope.sections and self._inputs.rope_position_ids is not None:
                cos, sin = (_by_section(table, rope, self._inputs.rope_position_ids) for table in (cos, sin))
        self._tables.append((rope, (cos, sin)))
        return cos, sin

    def _query_scaling(self, scaling: QueryScaling) -> Tensor:
        """Return the scaling factors of queries [B, 1, S, 1]."""
        if scaling not in self._query_scalings:
            assert self._inputs.position_ids is not None
            with self._graph.scope("query_scaling"):
                table = self._graph.constant(query_scaling_table(scaling, self._options.max_sequence_length), "table")
                self._query_scalings[scaling] = unsqueeze(embedding(self._inputs.position_ids, table), 1)
        return self._query_scalings[scaling]


def _by_section(table: Tensor, rope: RopeSpec, positions: Tensor) -> Tensor:
    """Return each token's angles: table [T, dim / 2], positions [3, B, S] -> [B, S, dim / 2]."""
    axes = section_axes(rope).reshape(1, 1, -1)
    parts = []
    for axis in range(3):
        mask = table.graph.constant((axes == axis).astype(np.float32), f"section_{axis}", table.dtype)
        parts.append(embedding(pick(positions, axis), table) * mask)
    return parts[0] + parts[1] + parts[2]


class RowInputs:
    """Adds the caches and states that some rows of a call read, and the masks and page tables that layers share.

    others: the call's other rows, whose page pools these rows read too.
    """

    def __init__(
        self,
        weights: Weights,
        options: DecoderOptions,
        inputs: ScheduledRows,
        in_place: frozenset[int],
        others: Sequence[RowInputs],
    ) -> None:
        self._weights, self._graph, self._options, self._inputs = weights, weights.graph, options, inputs
        self._in_place, self._prefix = in_place, inputs.rows.prefix
        self._is_appended = options.has_read_only_caches or inputs.rows.is_padded or not inputs.context.is_whole
        self._row_axis = PROMPTS if inputs.rows.is_padded else BATCH
        self._caches: dict[int, Mapping[str, Tensor]] = {}
        self._others = others
        self._masks: dict[_MaskKind, Tensor] = {}
        self._encoded_mask: Tensor | None = None
        self._keys: Tensor | None = None
        self._cached: Tensor | None = None
        self._own_window: Tensor | None = None
        self._branches: tuple[Tensor, Tensor] | None = None
        self._indices: dict[int, CacheIndex] = {}
        self._page_rows: PageRows | None = None
        self._pasts: dict[int, Past] = {}
        self._has_begun: Tensor | None = None
        self._chunks: dict[int, TokenChunk] = {}

    def states(self, index: int, recurrent: RecurrentSpec) -> States:
        """Return the input of a layer's recurrent mixer, adding network inputs for its states."""
        counts = self._inputs.token_counts
        assert counts is not None
        states = {state.name: self._state(index, state) for state in recurrent.states}
        return States(self._inputs.rows, states, counts, self._chunk(counts, recurrent.most_new_tokens or 1))

    def _state(self, index: int, state: StateSpec) -> Tensor:
        """Add the input for a state; it is zeroed where a sequence starts."""
        dtype = FP32 if state.is_fp32 else self._options.dtype
        axes = (self._row_axis, *(Axis("state", size) for size in state.shape))
        name = f"{self._prefix}{state.name}_{index}"
        feeder: Feeder = "slots" if self._prefix else "state"
        updated = "" if self._prefix else f"present_{name}"
        past = self._graph.take(InputSpec(f"past_{name}", dtype.name, axes, feeder, updated))
        with self._graph.scope(f"past_{self._prefix}{state.name}"):
            if self._has_begun is None:
                self._has_begun = self._inputs.write_indices > 0
            axes_of_state = range(1, 1 + len(state.shape))
            return select(unsqueeze(self._has_begun, *axes_of_state), past, 0.0)

    def _chunk(self, counts: Tensor, most: int) -> TokenChunk:
        """Return the rows' new tokens, shared by all layers that take as many.

        Decoding rows in a packed call have few: their recurrences need no products for more.
        """
        size = min(most, MOST_ROW_TOKENS) if isinstance(self._inputs.rows, DecodingRows) else most
        return self._chunks.setdefault(size, TokenChunk(counts, size))

    def reach(self, index: int, attention: AttentionSpec) -> Reach:
        """Return what the rows' tokens attend to in a layer, adding network inputs for its caches."""
        past, is_in_place = self._past(index, attention), index in self._in_place
        lengths = self._inputs.kv_lengths if self._options.has_native_lengths and not self._prefix else None
        fold = 1 if is_in_place else self._fold(attention)
        return Reach(past, None if is_in_place else self._mask(attention, fold), fold, lengths)

    def encoded(self, index: int, cross: CrossSpec) -> Encoded:
        """Add the inputs for a layer's reads of an encoder's output."""
        heads, head_dim = Axis("key_value_heads", cross.num_attention_heads), Axis("head_dim", cross.head_dim)
        axes = (heads, Axis("encoded", cross.length), head_dim)
        keys, values = (self._of_encoder(f"{name}_{index}", self._options.dtype, axes) for name in ENCODED)
        return Encoded(self._inputs.rows, keys, values, self._mask_of_encoded(cross) if cross.is_padded else None)

    def _of_encoder(self, name: str, dtype: DType, axes: tuple[Axis, ...]) -> Tensor:
        """Add an input for an encoder's output for the rows' requests [B, ...]."""
        feeder: Feeder = "slots" if self._prefix else "encoder"
        return self._graph.take(InputSpec(f"{self._prefix}{name}", dtype.name, (self._row_axis, *axes), feeder))

    def _mask_of_encoded(self, cross: CrossSpec) -> Tensor:
        """Return the additive mask of an encoder's positions [B, 1, 1, length]; layers share its input."""
        if self._encoded_mask is None:
            is_filled = unsqueeze(self._of_encoder(ENCODED_MASK, INT32, (Axis("encoded", cross.length),)), 1, 2) > 0
            dtype = self._options.dtype
            with self._graph.scope(f"{self._prefix}{ENCODED_MASK}"):
                self._encoded_mask = select(is_filled, self._graph.number(0.0, dtype, 4), lowest(dtype))
        return self._encoded_mask

    def _past(self, index: int, attention: AttentionSpec) -> Past:
        """Add the inputs for one layer's cache."""
        inputs = self._inputs
        if attention.cache_of is not None:
            shared, self._caches[index] = self._pasts[attention.cache_of], self._caches[attention.cache_of]
        else:
            shared, self._caches[index] = None, self._layer_caches(index, attention)
        caches = self._caches[index] if attention.caches else {}
        is_in_place = index in self._in_place
        past = Past(
            inputs.rows,
            caches,
            inputs.write_indices,
            shared,
            self._scales(index, attention),
            inputs.key_positions,
            self._index(attention.cached_heads) if caches and not is_in_place else None,
            self._pages(index, attention) if is_in_place else None,
            self._options.expands_latent,
            self._is_appended,
            attention.context.count > 1 and self._options.kv_cache is None,
        )
        self._pasts[index] = past  # filled when the layer is written, before layers that share it
        return past

    def _scales(self, index: int, attention: AttentionSpec) -> dict[str, float] | None:
        """Return the scales of a layer's 8-bit caches, by cache; None if they are not 8-bit."""
        kv = self._options.kv_cache
        if kv is None or index not in kv.scales:
            return None
        return {
            name: scale / (attention.key_factor if name == "key" else 1) for name, scale in kv.scales[index].items()
        }

    def _layer_caches(self, index: int, attention: AttentionSpec) -> Mapping[str, Tensor]:
        """Return a layer's caches: of the rows, of every slot, or page pools, which all rows share."""
        options, dtype = self._options, self._options.dtype
        if options.page_tokens is not None and self._others:
            return self._others[0]._caches[index]
        heads, head_dim = Axis("key_value_heads", attention.cached_heads), Axis("head_dim", attention.head_dim)
        first, tokens = self._row_axis, Axis("cached_tokens", self._cached_length)
        if options.page_tokens is not None:
            first, tokens = Axis("pages"), Axis("page_tokens", options.page_tokens // attention.context.count)
        feeder: Feeder = "slots" if self._prefix else "cache"
        dtype = dtype if options.kv_cache is None else DTYPES[options.kv_cache.format]
        axes, caches = (first, heads, tokens, head_dim), {}
        for cache in attention.caches:
            name = f"{self._prefix}{cache}_{index}"
            updated = "" if self._prefix else f"present_{name}"
            caches[cache] = self._graph.take(InputSpec(f"past_{name}", dtype.name, axes, feeder, updated))
        return caches

    def _pages(self, index: int, attention: AttentionSpec) -> Pages:
        """Return the pages that a layer reads in place; the sequences' page tables are shared by all layers."""
        inputs = self._inputs
        assert inputs.page_table is not None
        assert inputs.kv_lengths is not None
        if self._page_rows is None:
            with self._graph.scope(f"{self._prefix}page_rows"):
                counts = inputs.kv_lengths - inputs.write_indices
                self._page_rows = PageRows(inputs.page_table, inputs.write_indices, counts)
        pools = self._caches[index]
        decodes = isinstance(inputs.rows, DecodingRows)
        attributes = op_attributes(attention, self._options, decodes=decodes)
        scales = self._scales(index if attention.cache_of is None else attention.cache_of, attention) or {}
        attributes |= {f"{name}_scale": rounded(scale, self._options.dtype) for name, scale in scales.items()}
        return Pages(self._page_rows, pools["key"], pools["value"], attributes)

    def _index(self, heads: int) -> CacheIndex | None:
        """Return where the rows' tokens are in caches with `heads`, for all such layers; None if caches are per row."""
        table = self._inputs.page_table
        if table is not None and heads not in self._indices:
            with self._graph.scope(f"{self._prefix}page_table"):
                self._indices[heads] = self._new_index(table, heads)
        return self._indices.get(heads)

    def _new_index(self, table: Tensor, heads: int) -> CacheIndex:
        inputs, page_tokens = self._inputs, self._options.page_tokens
        if not inputs.rows.is_padded:
            return index_of_pages(table, heads)
        assert page_tokens is not None
        assert inputs.key_positions is not None
        positions, share = self._window(inputs.key_positions), inputs.context.share
        pages = self._graph.elementwise("FLOOR_DIV", positions, page_tokens)
        size = page_tokens // share.count  # page size on this rank
        columns = positions - pages * page_tokens
        columns = unsqueeze(columns - share.index * size if share.index else columns, 0)
        return index_of_tokens(entries(table, 1, pages), columns, heads, size)

    @property
    def _has_guesses(self) -> bool:
        """Whether these are decoding rows of a packed call, which mostly include guesses of a draft head."""
        has_head = self._options.fusion is not None or self._options.gives_last_hidden
        return has_head and isinstance(self._inputs.rows, DecodingRows)

    def _fold(self, attention: AttentionSpec) -> int:
        """Return how many heads that share keys attend one after the other, as rows of one head.

        Otherwise keys and values would be copied for each of them, unless TensorRT knows that rows have one token: then
        it reads them in place, with a kernel that does not take folded heads. Rows with guesses usually have more.
        """
        if not (self._prefix or self._has_guesses) or attention.has_alibi or attention.relative is not None:
            return 1
        if attention.latent is not None:
            return 1 if self._options.expands_latent else attention.attending_heads
        return attention.attending_heads // attention.cached_heads

    def _mask(self, attention: AttentionSpec, fold: int) -> Tensor:
        length = self._options.max_sequence_length
        window, chunk = (
            None if size is None or size >= length else size for size in (attention.sliding_window, attention.chunk)
        )
        share = attention.attending_share
        heads = attention.attending_heads * share.count
        alibi = (heads, share, attention.alibi_scale) if attention.has_alibi else None
        kind = (window, chunk, alibi, attention.relative, fold)
        if kind not in self._masks:
            assert self._inputs.kv_lengths is not None
            assert self._inputs.position_ids is not None
            positions, visible = cast(self._inputs.position_ids, INT32), self._inputs.visible_lengths
            ids = concat([positions] * fold, 1)
            visible = visible if visible is None else concat([visible] * fold, 1)
            if self._inputs.branch_ends is None:
                keys = self._key_positions(positions)
                mask = causal_mask(ids, self._inputs.kv_lengths, keys, window, visible)
            else:
                places, branches = self._tree(self._inputs.branch_ends)
                keys = self._key_positions(places)
                ends = concat([places + 1] * fold, 1)
                mask = causal_mask(ids, self._inputs.kv_lengths, keys, window, ends) & concat([branches] * fold, 2)
            mask = mask if chunk is None else mask & chunk_mask(ids, keys, chunk)
            if alibi is not None:
                slopes = alibi_slopes(heads)[share.of(heads)] * attention.alibi_scale
                mask = alibi_mask(mask, ids, slopes, self._options.dtype, keys)
            if attention.relative is not None:
                mask = relative_mask(mask, ids, self._by_distance(attention.relative), keys)
            self._masks[kind] = mask
        return self._masks[kind]

    def _by_distance(self, relative: RelativeSpec) -> Tensor:
        """Return the score bias of every distance in a slot [T, N]; the first layer that uses it holds the table."""
        with self._graph.scope("attention/relative_bias"):
            buckets = distance_buckets(relative, self._options.max_sequence_length)
            return embedding(self._graph.constant(buckets, "buckets"), self._weights.get("weight"))

    def _tree(self, branch_ends: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cache positions of a tree's new tokens [B, S], and false for each key that one does not see."""
        if self._branches is None:
            starts = self._inputs.write_indices
            positions = tree_places(starts, branch_ends, self._options.max_sequence_length)
            mask = tree_mask(positions, branch_ends, self._cached_positions(), starts, is_appended=self._is_appended)
            self._branches = positions, mask
        return self._branches

    def _key_positions(self, positions: Tensor) -> Tensor:
        """Return the positions of the keys that attention reads: cached ones, and new ones at `positions`."""
        if self._keys is None:
            cached, starts = self._cached_positions(), self._inputs.write_indices
            context = self._inputs.context
            self._keys = appended_positions(positions, starts, cached, context) if self._is_appended else cached
        return self._keys

    def _cached_positions(self) -> Tensor:
        """Return the positions of the cached keys that attention reads, [1, 1, 1, T]."""
        if self._cached is None:
            window = self._inputs.key_positions
            if window is None:
                self._cached = cached_positions(self._graph, self._cached_length, self._inputs.context)
            else:
                self._cached = unsqueeze(self._window(window), 0, 1, 2)
        return self._cached

    @property
    def _cached_length(self) -> int:
        """Tokens per slot in linear caches on this rank."""
        return self._inputs.context.linear_length(self._options.max_sequence_length)

    def _window(self, positions: Tensor) -> Tensor:
        """Return those of the first positions, in whole pages, that this rank caches."""
        context = self._inputs.context
        if context.is_whole:
            return positions
        if self._own_window is None:
            with self._graph.scope(f"{self._prefix}key_positions"):
                by_rank = reshape(positions, (-1, context.share.count, context.block))
                self._own_window = reshape(take(by_rank, 1, context.share.index, 1), (-1,))
        return self._own_window


@dataclass(frozen=True, eq=False)
class ScheduledRows:
    """Inputs with the positions of some rows' tokens; a network has only those that it reads.

    position_ids, kv_lengths: if a layer attends.
    key_positions: if attention reads a part of the caches.
    page_table: if caches are paged.
    visible_lengths: if tokens of an image attend to each other.
    branch_ends: if new tokens form a tree.
    token_counts: if the model has recurrent states.
    context: the positions that caches hold.
    """

    rows: Rows
    write_indices: Tensor
    position_ids: Tensor | None = None
    kv_lengths: Tensor | None = None
    key_positions: Tensor | None = None
    page_table: Tensor | None = None
    visible_lengths: Tensor | None = None
    branch_ends: Tensor | None = None
    token_counts: Tensor | None = None
    context: ContextShare = ALL_POSITIONS


@dataclass(frozen=True, eq=False)
class ScheduledInputs:
    """Inputs with the positions of tokens; a network has only those that it reads.

    rows: of each group of a call's rows.
    position_ids: if positions are looked up, for a rotary embedding or to add to embeddings.
    rope_position_ids: if the model has M-RoPE.
    in_place: numbers of the layers that read pages in place.
    """

    rows: tuple[ScheduledRows, ...]
    position_ids: Tensor | None = None
    rope_position_ids: Tensor | None = None
    in_place: frozenset[int] = frozenset()


def scheduled_inputs(graph: Graph, spec: DecoderSpec, options: DecoderOptions) -> ScheduledInputs:
    """Add the inputs with the positions of tokens."""
    ids, new = options.ids_dtype, (TOKENS, ONE) if options.is_packed else (BATCH, NEW_TOKENS)
    has_sections = options.has_rope_positions and any(
        attention.rope is not None and attention.rope.sections for attention in spec.attentions
    )
    in_place = layers_in_place(spec, options)
    gathers = len(in_place) < len(spec.attentions)
    turns = any(
        attention.query_scaling or (attention.rope and not (has_sections and attention.rope.sections))
        for attention in spec.attentions
    )
    has_positions = gathers or turns or (spec.is_first_stage and spec.embedding.positions is not None)
    position_ids = _scheduled(graph, "position_ids", ids, *new) if has_positions else None
    rope = _scheduled(graph, "rope_position_ids", ids, Axis("rope_sections", 3), *new) if has_sections else None
    reads = _Reads(bool(spec.attentions), gathers, bool(spec.states))
    decoding = None
    if options.is_packed:
        decoding = DecodingRows(_scheduled(graph, DECODE_POSITION_IDS, INT32, BATCH, NEW_TOKENS))
    positions = position_ids if decoding is None else decoding.positions
    rows = [_rows_at_once(graph, options, positions, decoding or AllRows(), reads)]
    if decoding is not None:
        rows.append(_rows_of_prompts(graph, options, decoding.count, reads))
    context = context_of(spec.context, options.page_tokens)
    return ScheduledInputs(
        tuple(replace(scheduled, context=context) for scheduled in rows), position_ids, rope, in_place
    )


@dataclass(frozen=True)
class _Reads:
    """Whether some layers attend, gather cached tokens to attend to, or read recurrent states."""

    attends: bool
    gathers: bool
    has_states: bool


def _rows_at_once(
    graph: Graph, options: DecoderOptions, position_ids: Tensor | None, rows: Rows, reads: _Reads
) -> ScheduledRows:
    """Add the inputs of all rows, or of the decoding rows of a packed call."""
    attends, has_window = reads.attends, options.has_kv_window or options.page_tokens is not None
    starts = _scheduled(graph, "write_indices", INT32, BATCH)
    has_visible, has_tree = options.has_visible_lengths and not options.is_packed, options.has_tree
    return ScheduledRows(
        rows,
        starts,
        position_ids,
        _scheduled(graph, "kv_lengths", INT32, BATCH) if attends else None,
        _scheduled(graph, "key_positions", INT32, Axis("kv_window")) if has_window and reads.gathers else None,
        _scheduled(graph, "page_table", INT32, BATCH, Axis("row_pages")) if options.page_tokens and attends else None,
        _scheduled(graph, "visible_lengths", INT32, BATCH, NEW_TOKENS) if has_visible and attends else None,
        _scheduled(graph, "branch_ends", INT32, BATCH, NEW_TOKENS) if has_tree and attends else None,
        _scheduled(graph, "token_counts", INT32, BATCH) if reads.has_states else None,
    )


def _rows_of_prompts(graph: Graph, options: DecoderOptions, decoding: Tensor, reads: _Reads) -> ScheduledRows:
    """Add the inputs of the rows of a packed call that read prompts."""
    prompts, length = PROMPTS, Axis("prompt_length")

    def scheduled(name: str, *axes: Axis) -> Tensor:
        return _scheduled(graph, f"{PROMPT}{name}", INT32, *axes)

    gathers, is_paged = reads.gathers, reads.attends and options.page_tokens is not None
    rows = PromptRows(
        decoding, scheduled("tokens", prompts, length), _scheduled(graph, PROMPT_PLACES, INT32, Axis("prompt_tokens"))
    )
    return ScheduledRows(
        rows,
        scheduled("write_indices", prompts),
        scheduled("position_ids", prompts, length) if gathers else None,
        scheduled("kv_lengths", prompts) if reads.attends else None,
        scheduled("key_positions", Axis("prompt_window")) if gathers and is_paged else None,
        scheduled("page_table", prompts, Axis("prompt_pages")) if is_paged else None,
        scheduled("visible_lengths", prompts, length) if options.has_visible_lengths else None,
        token_counts=scheduled("token_counts", prompts) if reads.has_states else None,
    )


def _scheduled(graph: Graph, name: str, dtype: DType, *axes: Axis) -> Tensor:
    return graph.take(InputSpec(name, dtype.name, axes, "scheduler"))
