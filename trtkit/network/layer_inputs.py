"""What a decoder's layers read besides hidden states: where tokens stand, caches, and recurrent states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import DTYPES, FP32, INT32
from trtkit.models.attention import AttentionSpec
from trtkit.network.blocks.attention import Encoded
from trtkit.network.blocks.cache import Past, Positions, States
from trtkit.network.blocks.mixer import Attending
from trtkit.network.input_spec import BATCH, ENCODED, ENCODED_MASK, NEW_TOKENS, Axis, InputSpec
from trtkit.network.ops.arithmetic import cast, select
from trtkit.network.ops.gather import embedding, pick
from trtkit.network.ops.kv_cache import head_tables
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
from trtkit.network.ops.shape import unsqueeze
from trtkit.network.paged_layers import layers_in_place, op_attributes
from trtkit.network.rope_tables import distance_buckets, query_growth_table, rope_tables, section_axes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.dtypes import DType
    from trtkit.models.attention import CrossSpec, QueryGrowth, RelativeSpec, RopeSpec
    from trtkit.models.recurrent import StateSpec
    from trtkit.models.share import Share
    from trtkit.models.spec import DecoderSpec, LayerSpec
    from trtkit.network.blocks.mixer import Memory
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor

    _MaskKind = tuple[int | None, int | None, tuple[int, Share, float] | None, RelativeSpec | None]


class LayerInputs:
    """Adds each layer's caches and states, and what all layers share: masks and rotary tables, one of a kind."""

    def __init__(self, weights: Weights, options: DecoderOptions, inputs: ScheduledInputs) -> None:
        self._weights, self._graph, self._options, self._inputs = weights, weights.graph, options, inputs
        self._masks: dict[_MaskKind, Tensor] = {}
        self._encoded_mask: Tensor | None = None
        self._keys: Tensor | None = None
        self._cached: Tensor | None = None
        self._branches: tuple[Tensor, Tensor] | None = None
        self._has_begun: Tensor | None = None
        self._chunks: dict[int, TokenChunk] = {}
        self._page_tables: dict[int, Tensor] = {}
        self._page_rows: PageRows | None = None
        self._pools: dict[int, Mapping[str, Tensor]] = {}
        self._read: dict[int, Mapping[str, Tensor]] = {}
        self._tables: list[tuple[RopeSpec, tuple[Tensor, Tensor]]] = []
        self._growths: dict[QueryGrowth, Tensor] = {}

    def of(self, index: int, layer: LayerSpec) -> Memory | None:
        """Return what the mixer of a layer reads; None if it has none."""
        with self._graph.scope(f"layers.{index}"):
            if isinstance(layer.mixer, AttentionSpec):
                encoded = None if layer.cross is None else self._encoded(index, layer.cross)
                states = self._states(index, layer)
                positions = self._positions(layer.mixer, has_mask=index not in self._inputs.in_place)
                return Attending(positions, self._past(index, layer.mixer), encoded, states)
            return self._states(index, layer)

    def _states(self, index: int, layer: LayerSpec) -> States | None:
        """Return what a layer's recurrent mixer reads; None if it has none."""
        if layer.recurrent is None:
            return None
        assert self._inputs.token_counts is not None
        states = {state.name: self._state(index, state) for state in layer.states}
        return States(states, self._inputs.token_counts, self._chunk(layer.recurrent.most_new_tokens))

    def _encoded(self, index: int, cross: CrossSpec) -> Encoded:
        """Add the inputs for what a layer reads of an encoder."""
        heads, head_dim = Axis("key_value_heads", cross.num_attention_heads), Axis("head_dim", cross.head_dim)
        axes, dtype = (BATCH, heads, Axis("encoded", cross.length), head_dim), self._options.dtype.name
        keys, values = (self._graph.take(InputSpec(f"{name}_{index}", dtype, axes, "encoder")) for name in ENCODED)
        return Encoded(keys, values, self._mask_of_encoded(cross) if cross.is_padded else None)

    def _mask_of_encoded(self, cross: CrossSpec) -> Tensor:
        """Return what is added to scores of an encoder's places [B, 1, 1, length]; its input is all layers'."""
        if self._encoded_mask is None:
            spec = InputSpec(ENCODED_MASK, INT32.name, (BATCH, Axis("encoded", cross.length)), "encoder")
            is_filled = unsqueeze(self._graph.take(spec), 1, 2) > 0
            dtype = self._options.dtype
            with self._graph.scope(ENCODED_MASK):
                self._encoded_mask = select(is_filled, self._graph.number(0.0, dtype, 4), lowest(dtype))
        return self._encoded_mask

    @property
    def _position_ids(self) -> Tensor:
        assert self._inputs.position_ids is not None
        return self._inputs.position_ids

    def _positions(self, attention: AttentionSpec, *, has_mask: bool) -> Positions:
        tables = None if attention.rope is None else self._rope(attention.rope)
        growth = None if attention.query_growth is None else self._growth(attention.query_growth)
        lengths = self._inputs.kv_lengths if self._options.has_native_lengths else None
        is_by_token = bool(attention.rope and attention.rope.sections and self._inputs.rope_position_ids is not None)
        mask = self._mask(attention) if has_mask else None
        return Positions(self._inputs.position_ids, mask, tables, lengths, growth, is_by_token)

    def _past(self, index: int, attention: AttentionSpec) -> Past:
        """Add the inputs for one layer's cache."""
        options, kv = self._options, self._options.kv_cache
        heads, head_dim = Axis("key_value_heads", attention.num_key_value_heads), Axis("head_dim", attention.head_dim)
        row_axis, tokens = BATCH, Axis("cached_tokens", options.max_sequence_length)
        if options.page_tokens is not None:
            row_axis, tokens = Axis("pages"), Axis("page_tokens", options.page_tokens)
        axes = (row_axis, heads, tokens, head_dim)
        dtype = options.dtype if kv is None else DTYPES[kv.format]
        scales = None if kv is None else {"key": kv.key_scales[index], "value": kv.value_scales[index]}
        caches = {
            name: self._graph.take(
                InputSpec(f"past_{name}_{index}", dtype.name, axes, "cache", f"present_{name}_{index}")
            )
            for name in attention.caches
        }
        shared = None if attention.cache_of is None else self._read[attention.cache_of]
        inputs = self._inputs
        is_in_place = index in inputs.in_place
        tables = self._tables_of(attention.num_key_value_heads) if caches and not is_in_place else None
        self._pools[index] = caches if attention.cache_of is None else self._pools[attention.cache_of]
        pages = self._pages(index, attention) if is_in_place else None
        past = Past(
            caches, inputs.write_indices, shared, scales, inputs.key_positions, tables, pages, options.expands_latent
        )
        self._read[index] = past.read  # filled when the layer is written, before layers that read it too
        return past

    def _pages(self, index: int, attention: AttentionSpec) -> Pages:
        """Return what a layer reads where it is; which tokens sequences have is one for all layers."""
        inputs = self._inputs
        assert inputs.page_table is not None
        assert inputs.kv_lengths is not None
        if self._page_rows is None:
            with self._graph.scope("page_rows"):
                counts = inputs.kv_lengths - inputs.write_indices
                self._page_rows = PageRows(inputs.page_table, inputs.write_indices, counts)
        pools = self._pools[index]
        attributes, kv = op_attributes(attention, self._options), self._options.kv_cache
        if kv is not None:
            scales = {"key_scale": kv.key_scales[index], "value_scale": kv.value_scales[index]}
            attributes |= {name: rounded(scale, self._options.dtype) for name, scale in scales.items()}
        return Pages(self._page_rows, pools["key"], pools["value"], attributes)

    def _tables_of(self, heads: int) -> Tensor | None:
        """Return the pages of each sequence's heads, shared by all layers of as many; None if caches are linear."""
        table = self._inputs.page_table
        if table is not None and heads not in self._page_tables:
            with self._graph.scope("page_table"):
                self._page_tables[heads] = head_tables(table, heads)
        return self._page_tables.get(heads)

    def _state(self, index: int, state: StateSpec) -> Tensor:
        """Add the input for a state; a sequence begins with zeros, whatever its slot holds."""
        dtype = FP32 if state.is_fp32 else self._options.dtype
        axes = (BATCH, *(Axis("state", size) for size in state.shape))
        name = f"{state.name}_{index}"
        past = self._graph.take(InputSpec(f"past_{name}", dtype.name, axes, "state", f"present_{name}"))
        with self._graph.scope(f"past_{state.name}"):
            if self._has_begun is None:
                self._has_begun = self._inputs.write_indices > 0
            axes_of_state = range(1, 1 + len(state.shape))
            return select(unsqueeze(self._has_begun, *axes_of_state), past, 0.0)

    def _chunk(self, most: int | None) -> TokenChunk:
        """Return the new tokens of a call, shared by all layers that take as many."""
        assert self._inputs.token_counts is not None
        size = most or 1
        return self._chunks.setdefault(size, TokenChunk(self._inputs.token_counts, size))

    def _mask(self, attention: AttentionSpec) -> Tensor:
        length = self._options.max_sequence_length
        window, chunk = (
            None if size is None or size >= length else size for size in (attention.sliding_window, attention.chunk)
        )
        share = attention.share
        heads = attention.num_attention_heads * share.count
        alibi = (heads, share, attention.alibi_scale) if attention.has_alibi else None
        kind = (window, chunk, alibi, attention.relative)
        if kind not in self._masks:
            assert self._inputs.kv_lengths is not None
            ids = cast(self._position_ids, INT32)
            if self._inputs.branch_ends is None:
                keys = self._key_positions(ids)
                mask = causal_mask(ids, self._inputs.kv_lengths, keys, window, self._inputs.visible_lengths)
            else:
                positions, branches = self._tree(self._inputs.branch_ends)
                keys = self._key_positions(positions)
                mask = causal_mask(ids, self._inputs.kv_lengths, keys, window, positions + 1) & branches
            mask = mask if chunk is None else mask & chunk_mask(ids, keys, chunk)
            if alibi is not None:
                slopes = alibi_slopes(heads)[share.of(heads)] * attention.alibi_scale
                mask = alibi_mask(mask, ids, slopes, self._options.dtype, keys)
            if attention.relative is not None:
                mask = relative_mask(mask, ids, self._by_distance(attention.relative), keys)
            self._masks[kind] = mask
        return self._masks[kind]

    def _by_distance(self, relative: RelativeSpec) -> Tensor:
        """Return the scores of every distance in a slot [T, N]; the first layer that has them holds their table."""
        with self._graph.scope("attention/relative_bias"):
            buckets = distance_buckets(relative, self._options.max_sequence_length)
            return embedding(self._graph.constant(buckets, "buckets"), self._weights.get("weight"))

    def _tree(self, branch_ends: Tensor) -> tuple[Tensor, Tensor]:
        """Return where new tokens of a tree lie in the cache [B, S], and false where they do not see a key."""
        if self._branches is None:
            starts, is_appended = self._inputs.write_indices, self._options.has_read_only_caches
            positions = tree_places(starts, branch_ends, self._options.max_sequence_length)
            mask = tree_mask(positions, branch_ends, self._cached_positions(), starts, is_appended=is_appended)
            self._branches = positions, mask
        return self._branches

    def _key_positions(self, positions: Tensor) -> Tensor:
        """Return the positions of the keys that attention reads: cached ones, and new ones at `positions`."""
        if self._keys is None:
            cached, is_appended = self._cached_positions(), self._options.has_read_only_caches
            self._keys = appended_positions(positions, self._inputs.write_indices, cached) if is_appended else cached
        return self._keys

    def _cached_positions(self) -> Tensor:
        """Return the positions of the keys that attention reads of caches, [1, 1, 1, T]."""
        if self._cached is None:
            window, length = self._inputs.key_positions, self._options.max_sequence_length
            self._cached = cached_positions(self._graph, length) if window is None else unsqueeze(window, 0, 1, 2)
        return self._cached

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

    def _growth(self, growth: QueryGrowth) -> Tensor:
        """Return the factors of queries [B, 1, S, 1]."""
        if growth not in self._growths:
            with self._graph.scope("query_growth"):
                table = self._graph.constant(query_growth_table(growth, self._options.max_sequence_length), "table")
                self._growths[growth] = unsqueeze(embedding(self._position_ids, table), 1)
        return self._growths[growth]


def _by_section(table: Tensor, rope: RopeSpec, positions: Tensor) -> Tensor:
    """Return each token's angles: table [T, dim / 2], positions [3, B, S] -> [B, S, dim / 2]."""
    axes = section_axes(rope).reshape(1, 1, -1)
    parts = []
    for axis in range(3):
        mask = table.graph.constant((axes == axis).astype(np.float32), f"section_{axis}", table.dtype)
        parts.append(embedding(pick(positions, axis), table) * mask)
    return parts[0] + parts[1] + parts[2]


@dataclass(frozen=True, eq=False)
class ScheduledInputs:
    """The inputs that say where tokens stand, of which a network has those that it reads.

    position_ids, kv_lengths: where a layer attends; position_ids also where positions are added to embeddings, and
    not where pages are read in place and nothing turns.
    rope_position_ids: where the model has M-RoPE. key_positions: where attention reads a part of the caches.
    page_table: where caches are pools of pages.
    token_counts: where the model has recurrent states. visible_lengths: where tokens of an image see each other.
    branch_ends: where new tokens form a tree.
    in_place: numbers of the layers that read pages where they are.
    """

    write_indices: Tensor
    position_ids: Tensor | None = None
    kv_lengths: Tensor | None = None
    rope_position_ids: Tensor | None = None
    key_positions: Tensor | None = None
    page_table: Tensor | None = None
    token_counts: Tensor | None = None
    visible_lengths: Tensor | None = None
    branch_ends: Tensor | None = None
    in_place: frozenset[int] = frozenset()


def scheduled_inputs(graph: Graph, spec: DecoderSpec, options: DecoderOptions) -> ScheduledInputs:
    """Add the inputs that say where tokens stand."""
    ids = options.ids_dtype
    has_sections = options.has_rope_positions and any(
        attention.rope is not None and attention.rope.sections for attention in spec.attentions
    )

    def scheduled(name: str, dtype: DType, *axes: Axis) -> Tensor:
        return graph.take(InputSpec(name, dtype.name, axes, "scheduler"))

    attends, in_place = bool(spec.attentions), layers_in_place(spec, options)
    gathers = len(in_place) < len(spec.attentions)
    has_window = options.has_kv_window or options.page_tokens is not None
    turns = any(
        attention.query_growth or (attention.rope and not (has_sections and attention.rope.sections))
        for attention in spec.attentions
    )
    has_positions = gathers or turns or (spec.is_first_stage and spec.embedding.positions is not None)
    position_ids = scheduled("position_ids", ids, BATCH, NEW_TOKENS) if has_positions else None
    return ScheduledInputs(
        scheduled("write_indices", INT32, BATCH),
        position_ids,
        scheduled("kv_lengths", INT32, BATCH) if attends else None,
        scheduled("rope_position_ids", ids, Axis("rope_sections", 3), BATCH, NEW_TOKENS) if has_sections else None,
        scheduled("key_positions", INT32, Axis("kv_window")) if has_window and gathers else None,
        scheduled("page_table", INT32, BATCH, Axis("row_pages")) if options.page_tokens and attends else None,
        scheduled("token_counts", INT32, BATCH) if spec.states else None,
        scheduled("visible_lengths", INT32, BATCH, NEW_TOKENS) if options.has_visible_lengths and attends else None,
        scheduled("branch_ends", INT32, BATCH, NEW_TOKENS) if options.has_tree and attends else None,
        in_place,
    )
