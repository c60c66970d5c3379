"""Build a decoder-only language model from its spec: one builder for all families."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, INT32
from trtkit.errors import NetworkError
from trtkit.models.attention import AttentionSpec
from trtkit.models.spec import LearnedPositions, SinusoidalPositions
from trtkit.network.blocks.layer import decoder_layer
from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.streams import from_streams, per_layer_vectors, to_streams
from trtkit.network.blocks.token_share import TokenShare
from trtkit.network.blocks.weights import LowRankInputs, Weights
from trtkit.network.host_array import COMPUTE_TYPES
from trtkit.network.input_spec import BATCH, LOGIT_INDEX, NEW_TOKENS, ONE, TOKENS, Axis, InputSpec
from trtkit.network.layer_inputs import LayerInputs, scheduled_inputs
from trtkit.network.ops.activation import tanh
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.collective import all_gather_last
from trtkit.network.ops.gather import embedding, embedding_part, token_at
from trtkit.network.ops.linear import linear
from trtkit.network.ops.shape import concat, reshape, take
from trtkit.network.rope_tables import sinusoid_table
from trtkit.network.speculators import NEXT_DRAFT_HIDDEN, fused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.spec import DecoderSpec
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array
    from trtkit.network.layer_inputs import ScheduledInputs


FINAL_HIDDEN_STATES = "hidden_states"
"""The output of a network with `has_hidden_states`."""
EMBEDS = "inputs_embeds"
"""Vectors in place of tokens."""
HIDDEN_STATES, NEXT_HIDDEN_STATES = "previous_hidden_states", "next_hidden_states"
"""Input and output of pipeline stages: hidden states [B, S, D] from the previous stage and for the next."""
BLOCK_COUNTS = "block_counts"
"""Per layer that reads active neurons only, the counts of active and of read blocks: int32 [layers, 2]."""


def build_decoder(graph: Graph, spec: DecoderSpec, arrays: Mapping[str, Array], options: DecoderOptions) -> None:
    """Add a decoder-only language model to an empty graph, with its inputs and outputs.

    Inputs: `input_ids` [B, S], `position_ids` [B, S], `write_indices` [B], `kv_lengths` [B] (cached tokens including
    the new ones), `last_token_index` [B], and for each layer `past_key_<i>`, `past_value_<i>` [B, K, T, H], or one
    `past_latent_<i>` [B, 1, T, H].
    `position_ids` are positions in the cache and determine causality. M-RoPE rotates by `rope_position_ids` [3, B, S]:
    time, height and width. `key_positions` [T'] is 0, 1, 2, ...: attention reads that many cached tokens of each slot,
    at least the longest `kv_lengths`. Paged caches are pools [P, K, page_tokens, H], and `page_table` [B, n] says which
    pages hold a slot's tokens. `visible_lengths` [B, S] replaces `position_ids` + 1, so that tokens of an image
    see later ones of it, which are new in the same call. With `branch_ends` [B, S], new tokens may form a tree, in
    depth-first order: a token's descendants are those before the cache's place `branch_ends`, and `position_ids`,
    which then do not determine causality, say how far from the beginning it is.
    `inputs_embeds` [B, S, D] may take the place of `input_ids`. With `deepstack` it is [B, S, (1 + deepstack) * D]: the
    first part is the token's vector, and the others are added after the first layers.
    A pipeline stage after the first takes `previous_hidden_states` [B, S, D] in place of tokens; one before the last
    gives `next_hidden_states` in place of logits. What ranks of a stage share is joined by collectives among them, so
    that all have the same hidden states and logits; with a `token_share`, hidden states between blocks are of a rank's
    share of the tokens (see `TokenShare`).
    Outputs: `logits` in fp32, and for each cache its `present_<name>_<i>`, which shares the input's memory.
    Layers with a state take `past_<state>_<i>` [B, ...] and give `present_<state>_<i>`, the state after the first
    `token_counts` [B] of a row's new tokens. Where `write_indices` is 0, a sequence begins, with zeros for a state.
    `next_draft_hidden_states` [B, S, D'] is what a draft head reads, of a `fusion` or with
    `gives_last_hidden`.
    Layers that read an encoder take `cross_key_<i>`, `cross_value_<i>` [B, N, length, H], which stay as they are, and
    `cross_mask` [B, length] if requests fill different numbers of places.
    With `adapted` layers, see `LowRankInputs`.

    A packed network takes all new tokens as rows of one token: above, B is then T and S is 1, except for caches and
    the inputs about slots, which are those of the rows that decode: the first A * S tokens, at `decode_position_ids`
    [A, S], each row's last one and guesses of what follows. The other tokens are of prompts, in rows of padded length:
    `prompt_tokens` [B, S] and `prompt_places` [P] say which (see `PromptRows`).
    `prompt_write_indices` [B], `prompt_kv_lengths` [B], `prompt_position_ids` [B, S] and `prompt_key_positions` [T']
    are as without the prefix. Rows of prompts only read caches: `past_prompt_<cache>_<i>` [B, K, T, H], or pools, by
    `prompt_page_table` [B, n]. Their new keys and values are the outputs `present_prompt_<cache>_<i>` [P, K, 1, H].
    Their states are `past_prompt_<state>_<i>` [B, ...] and, after `prompt_token_counts` [B] tokens,
    `present_prompt_<state>_<i>`; a state is not to be read by rows of both kinds, unless the one that decodes is idle.
    `logits` [N, V] are of the tokens at `logit_index` [N].
    Every sequence is a slot with its own lengths. New tokens beyond a slot's `kv_lengths` are padding, which is written
    to the cache too, so `write_indices` + S is at most T. An idle slot has a `kv_lengths` of 1, since a softmax over no
    tokens is NaN.

    arrays: weights by path, as `trtkit.models.weights.find_weights` returns them. Raises NetworkError.
    """
    _check(spec, options)
    tokens = TokenShare(spec.token_share)
    weights = Weights(graph, arrays, options.dtype, spec.is_in_out, experts=options.experts, tokens=tokens)
    embedded = _embed(weights, spec, options)
    if options.adapted:
        rows = TOKENS if options.is_packed else BATCH
        low_rank = LowRankInputs(graph, options.dtype, options.adapted, rows, tokens)
        weights = replace(weights, low_rank=low_rank)
    x = _layers(weights, spec, options, embedded)
    if spec.is_last_stage:
        _head(weights, spec, options, x, embedded.table)
    else:
        graph.output(x, NEXT_HIDDEN_STATES)


def _layers(weights: Weights, spec: DecoderSpec, options: DecoderOptions, embedded: _Embedded) -> Tensor:
    """Add all layers with their caches and states; return the last hidden states [B, S, D]."""
    graph, streams, vectors = weights.graph, spec.block.streams, embedded.vectors
    read = LayerInputs(weights, options, embedded.inputs)
    x = embedded.x if streams is None else to_streams(weights, embedded.x, streams)
    befores = []  # the input of each layer
    for index, layer in spec.numbered_layers:
        memory = read.of(index, layer)
        befores.append(x)
        with graph.scope(f"layers.{index}"):
            x, present = decoder_layer(weights, x, spec.block, layer, memory, vectors[index] if vectors else None)
            x = x + embedded.added[index] if index < len(embedded.added) else x
        for name, tensor in present.items():
            graph.output(tensor, f"present_{name}_{index}")
    if weights.block_counts:
        with graph.scope("block_counts"):
            counts = concat(weights.block_counts, 0)
        graph.output(counts, BLOCK_COUNTS)
    if options.fusion is not None:
        graph.output(fused(weights, befores, options.fusion), NEXT_DRAFT_HIDDEN)
    return x if streams is None else from_streams(weights, x, streams)


def _check(spec: DecoderSpec, options: DecoderOptions) -> None:
    """Raise NetworkError for options that the model does not support."""
    if options.dtype not in COMPUTE_TYPES:
        names = ", ".join(str(dtype) for dtype in COMPUTE_TYPES)
        raise NetworkError(f"a network cannot be written in {options.dtype}", spec.model_type, f"use one of {names}")
    if spec.token_share.count > 1 and (spec.states or spec.reads_encoder or not options.is_packed):
        what = "ranks cannot share tokens with recurrent layers, an encoder's states or calls that are not packed"
        raise NetworkError(what, spec.model_type, "remove `parallel.sequence`")
    last = spec.first_layer + len(spec.layers)
    if spec.is_first_stage and not spec.is_last_stage and options.deepstack > last:
        what = f"vectors of images are added after the first {options.deepstack} layers, and the first stage has {last}"
        raise NetworkError(what, spec.model_type, "use fewer pipeline stages")
    if options.kv_cache is not None:
        _check_scales(spec, options.kv_cache.scales)
    if options.has_embeds_input and spec.block.per_layer is not None:
        what = "embeddings as input do not say which tokens they are, which each layer's own vectors need"
        raise NetworkError(what, spec.model_type, "give token ids")
    positions = spec.embedding.positions
    if isinstance(positions, LearnedPositions) and options.max_sequence_length > positions.count:
        raise NetworkError(
            f"max_sequence_length {options.max_sequence_length} is above the model's {positions.count} positions",
            spec.model_type,
            f"lower it to {positions.count}",
        )


def _check_scales(spec: DecoderSpec, scales: Mapping[int, Mapping[str, float]]) -> None:
    """Raise NetworkError if 8-bit caches lack a scale, or scales belong to a larger model."""
    fix = "quantize the caches of all layers, or of none"
    needed = [
        (index, cache)
        for index, layer in spec.numbered_layers
        if isinstance(layer.mixer, AttentionSpec)
        for cache in layer.mixer.caches
    ]
    missing = [(index, cache) for index, cache in needed if cache not in scales.get(index, {})]
    if missing:
        index, cache = missing[0]
        what = f"layer {index}'s `{cache}` cache has no scale in the checkpoint, in which other caches have one"
        raise NetworkError(what, spec.model_type, fix)
    last = spec.first_layer + len(spec.layers)
    if spec.is_last_stage and max(scales) >= last:
        what = f"layer {max(scales)}'s caches have scales, the model has {last} layers"
        raise NetworkError(what, spec.model_type, fix)


@dataclass(frozen=True, eq=False)
class _Embedded:
    """The layers' input. x: the first hidden states [B, S, D]. table: the embedding's, if it is needed.

    vectors: each layer's own, if it has any. added: [B, S, D], to add after each of the first layers.
    """

    x: Tensor
    table: Tensor | None
    inputs: ScheduledInputs
    vectors: list[Tensor]
    added: list[Tensor]


def _embed(weights: Weights, spec: DecoderSpec, options: DecoderOptions) -> _Embedded:
    """Add the inputs and everything before the layers."""
    graph, share = weights.graph, weights.tokens
    added: list[Tensor] = []
    new = (TOKENS, ONE) if options.is_packed else (BATCH, NEW_TOKENS)
    hidden = (*new, Axis("hidden_size", spec.hidden_size))
    takes_ids = spec.is_first_stage and not options.has_embeds_input
    if not spec.is_first_stage:
        x = graph.take(InputSpec(HIDDEN_STATES, options.dtype.name, hidden, "stage"))
    elif options.has_embeds_input:
        size = spec.hidden_size
        axes = (*new, Axis("hidden_size", size * (1 + options.deepstack)))
        embeds = share.own(share.padded(graph.take(InputSpec(EMBEDS, options.dtype.name, axes, "request"))))
        parts = [take(embeds, -1, index * size, size) for index in range(1 + options.deepstack)]
        x, *added = parts if options.deepstack else [embeds]
    else:
        tokens = share.padded(graph.take(InputSpec("input_ids", options.ids_dtype.name, new, "request")))
    inputs = _padded(share, scheduled_inputs(graph, spec, options))
    table = None
    with graph.scope("embedding"):
        if takes_ids or (spec.is_last_stage and spec.head.is_tied):
            table = weights.get("weight")
        if takes_ids and table is not None:
            x = _rows_of(weights, tokens, table, spec)
    x = _position(weights, x, spec, options, inputs) if spec.is_first_stage else x
    vectors = per_layer_vectors(weights, share.own(tokens), x, spec) if takes_ids else []
    return _Embedded(x, table, inputs, vectors, added)


def _padded(share: TokenShare, inputs: ScheduledInputs) -> ScheduledInputs:
    """Return the inputs with positions for the tokens that pad the ranks' shares."""
    positions, rope = inputs.position_ids, inputs.rope_position_ids
    positions = positions if positions is None else share.padded(positions)
    return replace(
        inputs, position_ids=positions, rope_position_ids=rope if rope is None else share.padded(rope, axis=1)
    )


def _rows_of(weights: Weights, tokens: Tensor, table: Tensor, spec: DecoderSpec) -> Tensor:
    """Return the embeddings [B, S, D] of tokens [B, S]; a rank may hold a share of the table."""
    share = spec.vocab_share
    if share.count == 1:
        x = embedding(tokens, table)
    else:
        with tokens.graph.scope("vocab_share"):
            x = weights.tokens.leave(embedding_part(tokens, table, share), share.count)
    return x * spec.embedding.scale if spec.embedding.scale != 1 else x


def _position(
    weights: Weights, x: Tensor, spec: DecoderSpec, options: DecoderOptions, inputs: ScheduledInputs
) -> Tensor:
    """Add learned or sinusoidal positions and normalize the embeddings, if the model does."""
    added, ids = spec.embedding.positions, inputs.position_ids
    ids = ids if added is None or ids is None else weights.tokens.own(ids)
    with x.graph.scope("position_embedding"):
        if isinstance(added, LearnedPositions) and ids is not None:
            x = x + embedding(ids + added.offset if added.offset else ids, weights.get("weight"))
        elif isinstance(added, SinusoidalPositions) and ids is not None:
            table = sinusoid_table(added, options.max_sequence_length, spec.hidden_size)
            x = x + embedding(ids, x.graph.constant(table, "table", options.dtype))
    return norm_block(weights, "embedding_norm", x, spec.embedding.norm) if spec.embedding.norm is not None else x


def _head(weights: Weights, spec: DecoderSpec, options: DecoderOptions, x: Tensor, table: Tensor | None) -> None:
    """Add final norm, LM head and outputs. x: the last hidden states. table: the embedding's, if it is tied."""
    graph, head = weights.graph, spec.head
    is_normed = head.norm is None
    if head.norm is not None and (options.has_hidden_states or options.gives_last_hidden):
        x, is_normed = norm_block(weights, "final_norm", x, head.norm), True
    if options.has_hidden_states:
        graph.output(weights.tokens.gathered(x), FINAL_HIDDEN_STATES)
    if options.gives_last_hidden:
        graph.output(x, NEXT_DRAFT_HIDDEN)
    if options.is_packed:
        index = graph.take(InputSpec(LOGIT_INDEX, INT32.name, (Axis("logit_rows"),), "scheduler"))
        x = weights.tokens.picked(x, index)
        x = reshape(x, (0, x.shape[2]))
    elif not options.has_all_logits:
        x = token_at(x, graph.take(InputSpec("last_token_index", INT32.name, (BATCH,), "scheduler")))
    if head.norm is not None and not is_normed:
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
