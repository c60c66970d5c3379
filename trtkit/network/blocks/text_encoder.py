"""The encoder of BERT, RoBERTa, DistilBERT and ModernBERT: tokens to vectors, layers, a head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, INT32
from trtkit.network.blocks.mlp import mlp_block
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.activation import activation
from trtkit.network.ops.arithmetic import (
    absolute,
    cast,
    cumulative_sum,
    equal,
    logical_not,
    maximum,
    select,
    sqrt,
    sum_over,
)
from trtkit.network.ops.attention import attention, scale_query
from trtkit.network.ops.gather import embedding
from trtkit.network.ops.linear import linear
from trtkit.network.ops.mask import lowest
from trtkit.network.ops.rotary import rotary_embedding
from trtkit.network.ops.shape import merge_heads, reshape, split, split_heads, take, take_as_many, unsqueeze
from trtkit.network.rope_tables import rope_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.attention import AttentionSpec, RopeSpec
    from trtkit.models.hybrids.text_encoder import TextEncoderSpec, TextHead
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor

_LEAST_LENGTH, _LEAST_COUNT = 1e-12, 1e-9  # of vectors, of tokens: what sentence-transformers divides by at least


def write_text_encoder(weights: Weights, spec: TextEncoderSpec, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the hidden states of `input_ids` [B, S], and the head's outputs.

    `attention_mask` [B, S] is 0 at padding, which no token attends to; `token_type_ids` [B, S] if the model has types.
    Returns `last_hidden_state` [B, S, D] and the head's outputs, per token or per text.
    """
    ids = cast(inputs["input_ids"], INT32)
    shown = cast(inputs["attention_mask"], INT32) > 0
    x, words = _embedded(weights, spec, ids, inputs.get("token_type_ids"))
    shared = _Shared(weights, spec, ids, shown)
    for index, layer_attention in enumerate(spec.attention):
        with weights.graph.scope(f"layers.{index}"):
            x = _layer(weights, x, shared, layer_attention, has_norm=index > 0)
    if not spec.is_post_norm:
        x = norm_block(weights, "final_norm", x, spec.norm)
    outputs = {"last_hidden_state": x}
    if spec.head is not None:
        with weights.graph.scope("head"):
            outputs |= _head(weights, spec.head, x, shown, words)
    return outputs


def _embedded(weights: Weights, spec: TextEncoderSpec, ids: Tensor, types: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the embeddings of tokens [B, S, D], and the word table [V, D]."""
    graph = weights.graph
    with graph.scope("embedding"):
        with graph.scope("words"):
            words = weights.get("weight")
            x = embedding(ids, words)
        if spec.num_token_types:
            with graph.scope("types"):
                table = weights.get("weight")
                x = x + (unsqueeze(take(table, 0, 0, 1), 0) if types is None else embedding(cast(types, INT32), table))
        if spec.num_positions:
            with graph.scope("positions"):
                x = x + _positions(weights, spec, ids)
    return norm_block(weights, "embedding_norm", x, spec.norm), words


def _positions(weights: Weights, spec: TextEncoderSpec, ids: Tensor) -> Tensor:
    """Return the position embeddings, [1, S, D] if all tokens are counted, [B, S, D] if padding is skipped."""
    if spec.pad_token_id is None:
        return take_as_many(weights.get("weight", 3), 1, ids)
    is_token = cast(logical_not(equal(ids, spec.pad_token_id)), INT32)
    return embedding(cumulative_sum(is_token, 1) * is_token + spec.pad_token_id, weights.get("weight"))


@dataclass(eq=False)
class _Shared:
    """Masks and rotary tables, one for all layers that have the same. ids, shown: [B, S]."""

    weights: Weights
    spec: TextEncoderSpec
    ids: Tensor
    shown: Tensor
    _positions: Tensor | None = None
    _masks: dict[int | None, Tensor] = field(default_factory=dict)
    _tables: list[tuple[RopeSpec, tuple[Tensor, Tensor]]] = field(default_factory=list)

    @property
    def positions(self) -> Tensor:
        """The position of every token in its text, [B, S] in int32."""
        if self._positions is None:
            with self.weights.graph.scope("places"):
                self._positions = cumulative_sum(cast(equal(self.ids, self.ids), INT32), 1) - 1
        return self._positions

    def mask(self, window: int | None) -> Tensor:
        """Return the additive mask: [B, 1, 1, S], or [B, 1, S, S] for a layer with a window.

        It is added rather than bool: a text that is all padding then attends to all of it, as in transformers, rather
        than to nothing, which is NaN.
        """
        graph, dtype = self.weights.graph, self.weights.dtype
        if window not in self._masks:
            rows, columns = (unsqueeze(self.positions, *axes) for axes in ((1, 3), (1, 2))) if window else (None, None)
            with graph.scope("sliding_mask" if window else "mask"):
                allowed = unsqueeze(self.shown, 1, 2)
                if rows is not None and columns is not None and window is not None:
                    allowed = allowed & (absolute(rows - columns) < window + 1)
                self._masks[window] = select(allowed, graph.number(0.0, dtype, 4), lowest(dtype))
        return self._masks[window]

    def tables(self, rope: RopeSpec) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of all positions."""
        for known, tables in self._tables:
            if known == rope:
                return tables
        graph = self.weights.graph
        with graph.scope("rope"):
            cos, sin = (
                graph.constant(array, role, self.weights.dtype)
                for array, role in zip(rope_tables(rope, self.spec.max_tokens), ("cos", "sin"), strict=True)
            )
        self._tables.append((rope, (cos, sin)))
        return cos, sin


def _layer(weights: Weights, x: Tensor, shared: _Shared, attention: AttentionSpec, *, has_norm: bool) -> Tensor:
    """Apply a layer to x [B, S, D]. has_norm: before its attention, where norms come first."""
    spec = shared.spec
    if spec.is_post_norm:
        x = norm_block(weights, "attention_norm", x + _attention(weights, attention, x, shared), spec.norm)
        return norm_block(weights, "mlp_norm", x + mlp_block(weights, "mlp", x, spec.mlp), spec.norm)
    normed = norm_block(weights, "attention_norm", x, spec.norm) if has_norm else x
    x = x + _attention(weights, attention, normed, shared)
    return x + mlp_block(weights, "mlp", norm_block(weights, "mlp_norm", x, spec.norm), spec.mlp)


def _attention(weights: Weights, spec: AttentionSpec, x: Tensor, shared: _Shared) -> Tensor:
    """Attend from every token of x [B, S, D] to those of its text that its mask allows."""
    mask, heads, size = shared.mask(spec.sliding_window), spec.num_attention_heads, x.shape[-1]
    tables = None if spec.rope is None else (spec.rope, shared.tables(spec.rope), shared.positions)
    with weights.graph.scope("attention"):
        if spec.qkv == "concatenated":
            projected = split(weights.linear("qkv", x, has_bias=spec.has_qkv_bias), -1, (size,) * 3)
        else:
            projected = [weights.linear(name, x, has_bias=spec.has_qkv_bias) for name in "qkv"]
        q, k, v = (split_heads(part, heads) for part in projected)
        if tables is not None:
            rope, turns, positions = tables
            q, k = (rotary_embedding(part, turns, positions, rope.dim) for part in (q, k))
        attended = merge_heads(attention((scale_query(q, spec.scale), k, v), mask))
        return weights.linear("o", attended, has_bias=spec.has_output_bias)


def _head(weights: Weights, head: TextHead, x: Tensor, shown: Tensor, words: Tensor) -> dict[str, Tensor]:
    """Return the head's outputs by name: of hidden states x [B, S, D], shown [B, S] and the words' table [V, D]."""
    if head.tokens == "mean":
        kept = unsqueeze(cast(shown, FP32), 2)
        total, count = (unsqueeze(sum_over(values, 1), 1) for values in (cast(x, FP32) * kept, kept))
        x = cast(total / maximum(count, _LEAST_COUNT), x.dtype)
    elif head.tokens == "first":
        x = take(x, 1, 0, 1)
    if head.activation:
        x = activation(weights.linear("dense", x, has_bias=head.has_dense_bias), head.activation)
    if head.norm is not None:
        x = norm_block(weights, "norm", x, head.norm)
    if head.labels and head.is_tied:
        with weights.graph.scope("labels"):
            x = linear(x, unsqueeze(words, 0), weights.get("bias", 3) if head.has_label_bias else None)
    elif head.labels:
        x = weights.linear("labels", x, has_bias=head.has_label_bias)
    if head.is_normalized:
        wide = cast(x, FP32)
        x = wide / maximum(unsqueeze(sqrt(sum_over(wide * wide, -1)), 2), _LEAST_LENGTH)
    parts = split(x, -1, (1,) * len(head.outputs)) if len(head.outputs) > 1 else [x]
    if head.tokens != "all" or len(parts) > 1:
        parts = [reshape(part, (0, -1)) for part in parts]
    return dict(zip(head.outputs, parts, strict=True))
