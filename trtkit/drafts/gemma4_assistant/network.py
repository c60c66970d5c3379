"""Build Gemma 4's assistant: layers that read the model's caches and have none of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.drafts.gemma4_assistant.spec import ORDER
from trtkit.dtypes import FP32, INT32
from trtkit.network.blocks.cache import Past, Positions, Reach
from trtkit.network.blocks.layer import decoder_layer
from trtkit.network.blocks.mixer import Attending
from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.rows import AllRows
from trtkit.network.blocks.weights import Weights
from trtkit.network.input_spec import BATCH, Axis, InputSpec
from trtkit.network.ops.arithmetic import cast, max_over
from trtkit.network.ops.gather import embedding, entries, scatter_last
from trtkit.network.ops.kv_cache import index_of_pages
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.mask import causal_mask
from trtkit.network.ops.moe import top_k
from trtkit.network.ops.shape import concat, reshape, take_as_many, unsqueeze
from trtkit.network.rope_tables import rope_tables
from trtkit.network.speculators import DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.drafts.gemma4_assistant.spec import AssistantSpec, ClusterSpec
    from trtkit.models.attention import AttentionSpec
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array

_ONE = Axis("new_tokens", 1)


def build_network(
    graph: Graph, spec: AssistantSpec, _known: object, arrays: Mapping[str, Array], options: DecoderOptions
) -> None:
    """Add an assistant, with its inputs and outputs, to an empty graph.

    Inputs: `input_ids` [B, 1], the token after those that the model has read, or the last guess; `kv_lengths` [B], how
    many it has read, less than T; `draft_hidden_states` [B, 1, D], the model's after the last of them, or the output of
    the last guess; and the model's caches, which are not written, with `key_positions` and `page_table` as in
    `build_decoder`. All guesses have the position of the first uncached token. Outputs: `logits` [B, V] in fp32, and
    `next_draft_hidden_states` [B, D].
    """
    weights = Weights(graph, arrays, options.dtype)
    ids = graph.take(InputSpec("input_ids", options.ids_dtype.name, (BATCH, _ONE), "request"))
    axes = (BATCH, _ONE, Axis("hidden_size", spec.target_hidden_size))
    hidden = graph.take(InputSpec(DRAFT_HIDDEN, options.dtype.name, axes, "stage"))
    memory = _model_caches(graph, spec, options)
    with graph.scope("embedding"):
        embedded = embedding(ids, weights.get("weight")) * spec.embedding_scale
    x = weights.linear("pre_projection", concat([embedded, hidden], -1))
    for index, layer in enumerate(spec.decoder.layers):
        source = layer.attention.cache_of
        assert source is not None
        with graph.scope(f"layers.{index}"):
            x, _ = decoder_layer(weights, x, spec.decoder.block, layer, memory[source])
    assert spec.decoder.head.norm is not None
    x = reshape(norm_block(weights, "final_norm", x, spec.decoder.head.norm), (0, spec.decoder.hidden_size))
    graph.output(weights.linear("post_projection", x), NEXT_DRAFT_HIDDEN)
    graph.output(_logits(weights, x, spec.clusters), "logits")


def _logits(weights: Weights, x: Tensor, clusters: ClusterSpec | None) -> Tensor:
    """Return logits [B, V] of x [B, D] in fp32."""
    if clusters is not None:
        return _of_best_clusters(weights, x, clusters)
    with x.graph.scope("lm_head"):
        return cast(weights.product(x, None), FP32)


def _model_caches(graph: Graph, spec: AssistantSpec, options: DecoderOptions) -> dict[int, Attending]:
    """Return the attention inputs for each model layer whose caches are read, and the position of the query."""
    lengths = graph.take(InputSpec("kv_lengths", INT32.name, (BATCH,), "scheduler"))
    window = pages = None
    if options.has_kv_window or options.page_tokens is not None:
        window = graph.take(InputSpec("key_positions", INT32.name, (Axis("kv_window"),), "scheduler"))
    if options.page_tokens is not None:
        pages = graph.take(InputSpec("page_table", INT32.name, (BATCH, Axis("row_pages")), "scheduler"))
    with graph.scope("positions"):
        next_position = unsqueeze(lengths, 1)
        keys = options.max_sequence_length if window is None else unsqueeze(window, 0, 1, 2)
    memory = {}
    for source, attention in spec.sources.items():
        with graph.scope(f"cache_{source}"):
            past = Past(AllRows(), {}, lengths, read=_read(graph, source, attention, options, window, pages))
            mask = causal_mask(next_position, lengths, keys, attention.sliding_window)
            assert attention.rope is not None
            cos, sin = rope_tables(attention.rope, options.max_sequence_length)
            tables = graph.constant(cos, "cos", options.dtype), graph.constant(sin, "sin", options.dtype)
        memory[source] = Attending(Positions(next_position, tables), (Reach(past, mask),))
    return memory


def _read(
    graph: Graph,
    source: int,
    attention: AttentionSpec,
    options: DecoderOptions,
    window: Tensor | None,
    pages: Tensor | None,
) -> dict[str, Tensor]:
    """Return the keys and values [B, K, T, H] of a layer of the model."""
    heads, head_dim = Axis("key_value_heads", attention.num_key_value_heads), Axis("head_dim", attention.head_dim)
    row_axis, tokens = BATCH, Axis("cached_tokens", options.max_sequence_length)
    if options.page_tokens is not None:
        row_axis, tokens = Axis("pages"), Axis("page_tokens", options.page_tokens)
    axes, dtype = (row_axis, heads, tokens, head_dim), options.dtype.name
    caches = {name: graph.take(InputSpec(f"past_{name}_{source}", dtype, axes, "cache")) for name in ("key", "value")}
    if pages is not None:
        index = index_of_pages(pages, attention.num_key_value_heads)
        return {name: index.of(cache) for name, cache in caches.items()}
    if window is not None:
        return {name: take_as_many(cache, 2, window) for name, cache in caches.items()}
    return caches


def _of_best_clusters(weights: Weights, x: Tensor, clusters: ClusterSpec) -> Tensor:
    """Return logits [B, V] of x [B, D]; tokens outside the best clusters get 1 less than the lowest in them.

    Rows of the matrix are stored cluster by cluster, so that only those of the best are read.
    """
    graph, order = x.graph, np.asarray(weights.arrays[ORDER]).astype(np.int32)
    with graph.scope("clusters"):
        _, best = top_k(weights.linear("centroids", x), clusters.top_k)  # [B, k]
        size = clusters.count, order.size // clusters.count
        with graph.scope("tokens"):
            tokens = entries(graph.constant(order.reshape(size), "order"), 0, best)  # [B, k, V / count]
    with graph.scope("lm_head"):
        rows = weights.array("weight")[order].reshape(*size, -1)
        matrix = entries(graph.constant(rows, "weight", weights.dtype), 0, best)
        matrix = reshape(matrix, (0, -1, x.shape[-1]))
        logits = cast(reshape(matmul(matrix, unsqueeze(x, 2)), (0, -1)), FP32)
        others = max_over(logits * -1.0, -1) * -1.0 - 1.0  # [B, 1]
        filled = others + graph.constant(np.zeros((1, order.size), np.float32), "zeros")
        return scatter_last(filled, reshape(tokens, (0, -1)), logits)
