"""Build a decoder-only language model from its spec: one builder for all families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import DTYPES, FP16, FP32, INT32, DType
from trtkit.errors import NetworkError
from trtkit.models.spec import LearnedPositions
from trtkit.network.blocks.attention import Past, Positions
from trtkit.network.blocks.layer import decoder_layer
from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.weights import Weights
from trtkit.network.host_array import COMPUTE_TYPES
from trtkit.network.input_spec import BATCH, NEW_TOKENS, Axis, InputSpec
from trtkit.network.ops.activation import tanh
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.collective import all_gather_last
from trtkit.network.ops.gather import embedding, embedding_of_share, pick, token_at
from trtkit.network.ops.linear import linear
from trtkit.network.ops.mask import alibi_mask, alibi_slopes, appended_positions, cached_positions, causal_mask
from trtkit.network.ops.shape import concat, take, unsqueeze
from trtkit.network.rope_tables import query_growth_table, rope_tables, sinusoid_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.spec import AttentionSpec, DecoderSpec, RopeSpec, Share
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array
    from trtkit.quantized_matrix import KvQuantization


HIDDEN_STATES, NEXT_HIDDEN_STATES = "previous_hidden_states", "next_hidden_states"
"""What a pipeline stage takes from the one before it, and gives to the next: [B, S, D]."""


@dataclass(frozen=True)
class DecoderOptions:
    """How a model becomes a network.

    dtype: type of weights, caches and arithmetic: fp32, fp16 or bf16.
    max_sequence_length: T, the length of each slot's cache.
    has_all_logits: `logits` [B, S, V] of every token; otherwise [B, V] of the tokens at `last_token_index` [B].
    has_embeds_input: `inputs_embeds` [B, S, D], scaled like embeddings, instead of `input_ids`.
    has_hidden_states: also return `hidden_states` [B, S, D], after the final norm.
    has_native_lengths: pass `kv_lengths` to the attention layer, besides masking by them, so that it may skip the rest.
    has_kv_window: let attention read as many cached tokens as the input `key_positions` [T'] has, and not all T.
    kv_cache: 8-bit caches, with each layer's scales. They are read-only: `present_*` then holds only the new keys and
    values, [B, K, S, H], which the runtime writes into the caches.
    """

    dtype: DType = FP16
    max_sequence_length: int = 2048
    ids_dtype: DType = INT32
    has_all_logits: bool = False
    has_embeds_input: bool = False
    has_hidden_states: bool = False
    has_native_lengths: bool = False
    has_kv_window: bool = False
    kv_cache: KvQuantization | None = None


@dataclass(frozen=True, eq=False)
class _Inputs:
    """The network's inputs but tokens and caches.

    rope_position_ids: where the model has M-RoPE. key_positions: where attention reads a part of the caches.
    """

    position_ids: Tensor
    write_indices: Tensor
    kv_lengths: Tensor
    rope_position_ids: Tensor | None = None
    key_positions: Tensor | None = None


def build_decoder(graph: Graph, spec: DecoderSpec, arrays: Mapping[str, Array], options: DecoderOptions) -> None:
    """Add a decoder-only language model to an empty graph, with its inputs and outputs.

    Inputs: `input_ids` [B, S], `position_ids` [B, S], `write_indices` [B], `kv_lengths` [B] (cached tokens including
    the new ones), `last_token_index` [B], and for each layer `past_key_<i>`, `past_value_<i>` [B, K, T, H].
    `position_ids` are positions in the cache and determine causality. M-RoPE rotates by `rope_position_ids` [3, B, S]:
    time, height and width. `key_positions` [T'] is 0, 1, 2, ...: attention reads that many cached tokens of each slot,
    at least the longest `kv_lengths`.
    A pipeline stage after the first takes `previous_hidden_states` [B, S, D] in place of tokens; one before the last
    gives `next_hidden_states` in place of logits. What ranks of a stage share is joined by collectives among them, so
    that all have the same hidden states and logits.
    Outputs: `logits` in fp32, and for each layer `present_key_<i>`, `present_value_<i>`, which share the inputs'
    memory.
    Every sequence is a slot with its own lengths. New tokens beyond a slot's `kv_lengths` are padding, which is written
    to the cache too, so `write_indices` + S is at most T. An idle slot has a `kv_lengths` of 1, since a softmax over no
    tokens is NaN.

    arrays: weights by path, as `trtkit.models.weights.find_weights` returns them. Raises NetworkError.
    """
    _check(spec, options)
    weights = Weights(graph, arrays, options.dtype, spec.is_in_out)
    x, table, inputs = _embed(weights, spec, options)
    positions = _Rows(graph, options, inputs)
    for index, layer in spec.numbered_layers:
        past = _past(graph, layer.attention, options, index, inputs)
        with graph.scope(f"layers.{index}"):
            x, present = decoder_layer(weights, x, (spec.block, layer), positions.of(layer.attention), past)
        graph.output(present.keys, f"present_key_{index}")
        graph.output(present.values, f"present_value_{index}")
    if spec.is_last_stage:
        _head(weights, spec, options, x, table)
    else:
        graph.output(x, NEXT_HIDDEN_STATES)


def _check(spec: DecoderSpec, options: DecoderOptions) -> None:
    """Raise NetworkError for options that the model cannot be built with."""
    if options.dtype not in COMPUTE_TYPES:
        names = ", ".join(str(dtype) for dtype in COMPUTE_TYPES)
        raise NetworkError(f"a network cannot be written in {options.dtype}", spec.model_type, f"use one of {names}")
    last = spec.first_layer + len(spec.layers)
    if options.kv_cache is not None and (
        len(options.kv_cache.key_scales) < last or (spec.is_last_stage and len(options.kv_cache.key_scales) > last)
    ):
        counts = f"{len(options.kv_cache.key_scales)} layers' caches have scales, the model has {last} layers"
        raise NetworkError(counts, spec.model_type, "quantize the caches again")
    positions = spec.embedding.positions
    if isinstance(positions, LearnedPositions) and options.max_sequence_length > positions.count:
        raise NetworkError(
            f"max_sequence_length {options.max_sequence_length} is above the model's {positions.count} positions",
            spec.model_type,
            f"lower it to {positions.count}",
        )


def _embed(weights: Weights, spec: DecoderSpec, options: DecoderOptions) -> tuple[Tensor, Tensor | None, _Inputs]:
    """Add the inputs; return the first hidden state [B, S, D], the embedding table, and the other inputs."""
    graph = weights.graph
    hidden = (BATCH, NEW_TOKENS, Axis("hidden_size", spec.hidden_size))
    takes_ids = spec.is_first_stage and not options.has_embeds_input
    if not spec.is_first_stage:
        x = graph.take(InputSpec(HIDDEN_STATES, options.dtype.name, hidden, "stage"))
    elif options.has_embeds_input:
        x = graph.take(InputSpec("inputs_embeds", options.dtype.name, hidden, "request"))
    else:
        tokens = graph.take(InputSpec("input_ids", options.ids_dtype.name, (BATCH, NEW_TOKENS), "request"))
    ropes = [layer.attention.rope for layer in spec.layers]
    inputs = _scheduled(graph, options, has_sections=any(rope is not None and rope.sections for rope in ropes))
    table = None
    with graph.scope("embedding"):
        if takes_ids or (spec.is_last_stage and spec.head.is_tied):
            table = weights.get("weight")
        if takes_ids and table is not None:
            x = _rows_of(tokens, table, spec)
    return _position(weights, x, (spec, options), inputs) if spec.is_first_stage else x, table, inputs


def _rows_of(tokens: Tensor, table: Tensor, spec: DecoderSpec) -> Tensor:
    """Return the embedding [B, S, D] of tokens [B, S]."""
    is_whole = spec.vocab_share.count == 1
    x = embedding(tokens, table) if is_whole else embedding_of_share(tokens, table, spec.vocab_share)
    return x * spec.embedding.scale if spec.embedding.scale != 1 else x


def _scheduled(graph: Graph, options: DecoderOptions, *, has_sections: bool) -> _Inputs:
    """Add the inputs that say where tokens stand."""
    ids = options.ids_dtype

    def scheduled(name: str, dtype: DType, *axes: Axis) -> Tensor:
        return graph.take(InputSpec(name, dtype.name, axes, "scheduler"))

    return _Inputs(
        scheduled("position_ids", ids, BATCH, NEW_TOKENS),
        scheduled("write_indices", INT32, BATCH),
        scheduled("kv_lengths", INT32, BATCH),
        scheduled("rope_position_ids", ids, Axis("rope_sections", 3), BATCH, NEW_TOKENS) if has_sections else None,
        scheduled("key_positions", INT32, Axis("kv_window")) if options.has_kv_window else None,
    )


def _position(weights: Weights, x: Tensor, specs: tuple[DecoderSpec, DecoderOptions], inputs: _Inputs) -> Tensor:
    """Add learned or sinusoidal positions and norm the embedding, where the model does."""
    spec, options = specs
    added = spec.embedding.positions
    with x.graph.scope("position_embedding"):
        if isinstance(added, LearnedPositions):
            at = inputs.position_ids + added.offset if added.offset else inputs.position_ids
            x = x + embedding(at, weights.get("weight"))
        elif added is not None:
            table = sinusoid_table(added, options.max_sequence_length, spec.hidden_size)
            x = x + embedding(inputs.position_ids, x.graph.constant(table, "table", options.dtype))
    return norm_block(weights, "embedding_norm", x, spec.embedding.norm) if spec.embedding.norm is not None else x


def _past(graph: Graph, attention: AttentionSpec, options: DecoderOptions, index: int, inputs: _Inputs) -> Past:
    """Add the inputs for one layer's cache."""
    heads, head_dim = Axis("key_value_heads", attention.num_key_value_heads), Axis("head_dim", attention.head_dim)
    axes, kv = (BATCH, heads, Axis("cached_tokens", options.max_sequence_length), head_dim), options.kv_cache
    dtype = options.dtype if kv is None else DTYPES[kv.format]
    scales = None if kv is None else (kv.key_scales[index], kv.value_scales[index])
    keys, values = (
        graph.take(InputSpec(f"past_{name}_{index}", dtype.name, axes, "cache", f"present_{name}_{index}"))
        for name in ("key", "value")
    )
    return Past(keys, values, inputs.write_indices, scales, inputs.key_positions)


class _Rows:
    """Masks and rotary tables, one for all layers that share them."""

    def __init__(self, graph: Graph, options: DecoderOptions, inputs: _Inputs) -> None:
        self._graph, self._options, self._inputs = graph, options, inputs
        self._masks: dict[tuple[int | None, tuple[int, Share, float] | None], Tensor] = {}
        self._keys: Tensor | None = None
        self._tables: list[tuple[RopeSpec, tuple[tuple[Tensor, Tensor], Tensor | None]]] = []

    def of(self, attention: AttentionSpec) -> Positions:
        """Return what a layer's attention needs."""
        tables, growth = (None, None) if attention.rope is None else self._rope(attention.rope)
        lengths = self._inputs.kv_lengths if self._options.has_native_lengths else None
        return Positions(self._inputs.position_ids, self._mask(attention), tables, lengths, growth)

    def _mask(self, attention: AttentionSpec) -> Tensor:
        window = attention.sliding_window
        window = None if window is None or window >= self._options.max_sequence_length else window
        share = attention.share
        heads = attention.num_attention_heads * share.count
        alibi = (heads, share, attention.alibi_scale) if attention.has_alibi else None
        if (window, alibi) not in self._masks:
            ids = cast(self._inputs.position_ids, INT32)
            keys = self._key_positions(ids)
            mask = causal_mask(ids, self._inputs.kv_lengths, keys, window)
            if alibi is not None:
                slopes = alibi_slopes(heads)[share.of(heads)] * attention.alibi_scale
                mask = alibi_mask(mask, ids, slopes, self._options.dtype, keys)
            self._masks[window, alibi] = mask
        return self._masks[window, alibi]

    def _key_positions(self, ids: Tensor) -> Tensor:
        """Return the positions of the keys that attention reads: cached ones, and new ones that stand behind them."""
        if self._keys is None:
            window = self._inputs.key_positions
            length = self._options.max_sequence_length
            cached = cached_positions(self._graph, length) if window is None else unsqueeze(window, 0, 1, 2)
            quantized = self._options.kv_cache is not None
            self._keys = appended_positions(ids, self._inputs.write_indices, cached) if quantized else cached
        return self._keys

    def _rope(self, rope: RopeSpec) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Return cosines and sines, and the factors of queries [B, 1, S, 1] where they grow with their position."""
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
            growth = None
            if rope.query_growth is not None:
                factors = query_growth_table(*rope.query_growth, self._options.max_sequence_length)
                table = self._graph.constant(factors, "query_growth")
                growth = unsqueeze(embedding(self._inputs.position_ids, table), 1)
        self._tables.append((rope, ((cos, sin), growth)))
        return (cos, sin), growth


def _by_section(table: Tensor, rope: RopeSpec, positions: Tensor) -> Tensor:
    """Return each token's angles: table [T, dim / 2], positions [3, B, S] -> [B, S, dim / 2]."""
    by_axis = [embedding(pick(positions, axis), table) for axis in range(3)]
    starts = [sum(rope.sections[:index]) for index in range(len(rope.sections))]
    sections = enumerate(zip(starts, rope.sections, strict=True))
    return concat([take(by_axis[index % 3], -1, start, size) for index, (start, size) in sections], axis=-1)


def _head(weights: Weights, spec: DecoderSpec, options: DecoderOptions, x: Tensor, table: Tensor | None) -> None:
    """Add final norm, projection and outputs. x: the last hidden state. table: the embedding's, if it is tied."""
    graph, head = weights.graph, spec.head
    if options.has_hidden_states:
        x = norm_block(weights, "final_norm", x, head.norm) if head.norm is not None else x
        graph.output(x, "hidden_states")
    if not options.has_all_logits:
        x = token_at(x, graph.take(InputSpec("last_token_index", INT32.name, (BATCH,), "scheduler")))
    if head.norm is not None and not options.has_hidden_states:
        x = norm_block(weights, "final_norm", x, head.norm)
    with graph.scope("lm_head"):
        bias = weights.get("bias", x.rank) if head.has_bias else None
        tied = table if head.is_tied else None
        logits = cast(weights.product(x, bias) if tied is None else linear(x, tied, bias), FP32)
        if spec.vocab_share.count > 1:
            logits = all_gather_last(logits, spec.vocab_share.count)
            if logits.shape[-1] > spec.vocab_size:
                logits = take(logits, -1, 0, spec.vocab_size)
        if head.logit_scale != 1:
            logits = logits * head.logit_scale
        if head.softcap is not None:
            logits = tanh(logits / head.softcap) * head.softcap
        graph.output(logits, "logits")
