"""A layer's attention as data: heads, norms, rotary embedding, masks; multi-head latent attention; cross-attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trtkit.models.share import WHOLE, Share

Scaling = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"]


@dataclass(frozen=True)
class NormSpec:
    """A norm over the last axis. weight_offset: added to the stored weight (Gemma: 1)."""

    kind: Literal["rms", "layer"]
    eps: float
    weight_offset: float = 0.0
    has_weight: bool = True
    has_bias: bool = False


@dataclass(frozen=True)
class QueryScaling:
    """Scales the query at position p by 1 + beta * log(1 + (p + first) // length) (Llama 4, Ministral 3)."""

    beta: float
    length: int
    first: int = 0


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding of the first `dim` elements of each head.

    is_interleaved: rotates elements 2i and 2i + 1 together; otherwise i and i + dim / 2.
    max_position_embeddings: the model's context length, where dynamic NTK scaling starts.
    scaling, parameters: the method and its numbers under Hugging Face's names (`factor`, `beta_fast`, ...).
    sections: how many pairs are rotated by time, by height and by width, in this order (M-RoPE). Empty: tokens have a
        single position.
    are_sections_interleaved: height takes pairs 1, 4, 7, ..., width pairs 2, 5, 8, ..., as many as their sections; time
        takes the rest.
    is_reversed: rotates in the opposite direction (nanochat).
    """

    theta: float
    dim: int
    is_interleaved: bool = False
    max_position_embeddings: int = 0
    scaling: Scaling = "default"
    parameters: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    sections: tuple[int, ...] = ()
    are_sections_interleaved: bool = False
    is_reversed: bool = False


@dataclass(frozen=True)
class GateSpec:
    """Gates on the heads' outputs, from a projection of their own. is_by_head: one per head, not one per element."""

    activation: Literal["sigmoid", "softplus"]
    is_by_head: bool = False


@dataclass(frozen=True)
class RelativeSpec:
    """A learned bias per head and distance, in `buckets` that widen up to `max_distance` (T5).

    layer: the layer that stores the table [buckets, N].
    """

    buckets: int
    max_distance: int
    layer: int


@dataclass(frozen=True)
class AttentionSpec:
    """Self-attention of one layer.

    scale: factor of the scores, usually head_dim ** -0.5.
    qkv: how projections are stored. `separate`: three matrices. `concatenated`: one matrix, `[q | k | v]`. `grouped`:
        one matrix in which each group of query heads is followed by its key head and its value head. `fourths`: one
        matrix of four blocks `[q | v | k]`, each with a fourth of the heads. `no_values`: the keys are the values, too.
    has_key_bias: whether keys have a bias, too, if `has_qkv_bias`.
    qk_norm: a norm of queries and keys. `head`: over each head, with one weight for all; `each_head`: with a row of
        weights per head; `listed_heads`: with a separately named weight per head. `all`: over all heads together.
    is_rotated_first: qk_norm follows the rotary embedding instead of preceding it.
    qkv_clip: clamps queries, keys and values to [-qkv_clip, qkv_clip], after a norm over all heads and before they are
        split into heads; None: no limit.
    softcap: scores become softcap * tanh(scores / softcap). has_sinks: one learned score per head joins the softmax.
    has_alibi: adds ALiBi's bias, which is linear in distance, times alibi_scale (Falcon: scale).
    relative: learned bias by distance; None if there is none.
    rope: None if there is no rotary embedding.
    sliding_window: how many tokens a token attends to, itself included; None for all.
    chunk: tokens attend within their own chunk of this many positions. query_scaling: scales queries by position.
    latent: all heads share one key/value head: a latent vector, which each head expands to its keys and values, and
        rope_dim rotated elements. `norm` is then that of the compressed vectors.
    is_gated: outputs are multiplied by the sigmoid of gates, which follow each head's query in `q`.
    value_dim: elements of a head's value, if fewer than of its key. Caches pad values with zeros, since TensorRT's
        attention takes keys and values of one size.
    value_scale: factor of the values. key_factor: factor of the keys; it is part of `scale` and not of cached keys.
    gate: gates with a projection of their own, `z`; None if there are none.
    value_norm: over each head's values. output_norm: over the outputs of all heads together, before `o`.
    cache_of: the layer whose keys and values this layer reads, if it has none.
    share: this rank's share of the heads; the ranks' outputs are summed.
    context: this rank's share of cached positions, to which the query heads of all ranks attend.
    context_heads: which of the key/value heads gathered from these ranks, in order, each rank caches, without repeats.
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    scale: float
    qkv: Literal["separate", "concatenated", "grouped", "fourths", "no_values"] = "separate"
    has_qkv_bias: bool = False
    has_key_bias: bool = True
    has_output_bias: bool = False
    norm: NormSpec | None = None
    qk_norm: Literal["none", "head", "each_head", "listed_heads", "all"] = "none"
    is_rotated_first: bool = False
    qkv_clip: float | None = None
    softcap: float | None = None
    has_sinks: bool = False
    has_alibi: bool = False
    alibi_scale: float = 1.0
    relative: RelativeSpec | None = None
    rope: RopeSpec | None = None
    sliding_window: int | None = None
    chunk: int | None = None
    query_scaling: QueryScaling | None = None
    latent: LatentSpec | None = None
    is_gated: bool = False
    value_dim: int | None = None
    value_scale: float = 1.0
    key_factor: float = 1.0
    gate: GateSpec | None = None
    value_norm: NormSpec | None = None
    output_norm: NormSpec | None = None
    cache_of: int | None = None
    share: Share = WHOLE
    context: Share = WHOLE
    context_heads: tuple[int, ...] = ()

    @property
    def caches(self) -> tuple[str, ...]:
        """Names of the layer's caches, each with `cached_heads` heads of head_dim elements per token."""
        if self.cache_of is not None:
            return ()
        return ("key", "value") if self.latent is None else ("latent",)

    def has_bias(self, projection: str) -> bool:
        """Whether the projection of queries (`q`), keys (`k`) or values (`v`) has a bias."""
        return self.has_qkv_bias and (projection != "k" or self.has_key_bias)

    @property
    def projections(self) -> tuple[str, ...]:
        """Names of the projections that have a matrix of their own."""
        if self.cache_of is not None:
            return ("q",)
        return ("q", "k") if self.qkv == "no_values" else ("q", "k", "v")

    @property
    def cached_heads(self) -> int:
        """Key/value heads of the layer's caches."""
        return len(self.context_heads) or self.num_key_value_heads

    @property
    def attending_heads(self) -> int:
        """Number of query heads that attend to the layer's caches: those of all ranks if ranks share its positions."""
        return self.num_attention_heads * self.context.count

    @property
    def attending_share(self) -> Share:
        """The share of all heads that `attending_heads` make up."""
        return self.share if self.context.count == 1 else WHOLE

    @property
    def cached_elements(self) -> int:
        """Elements per token in the layer's caches."""
        return len(self.caches) * self.cached_heads * self.head_dim

    @property
    def output_size(self) -> int:
        """Elements that the output projection reads: the outputs of all heads."""
        value_size = self.head_dim if self.value_dim is None else self.value_dim
        return self.num_attention_heads * (value_size if self.latent is None else self.latent.value_dim)

    @property
    def used_value_size(self) -> int:
        """How many of each value's first elements are used; the rest is padding, or the latent's rotated elements."""
        if self.latent is not None:
            return self.latent_rank
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def gate_size(self) -> int:
        """Gates per head, if gates have a projection of their own."""
        return 1 if self.gate is not None and self.gate.is_by_head else self.head_dim

    @property
    def latent_rank(self) -> int:
        """Size of the latent vector that keys and values are expanded from; 0 if there is none."""
        return 0 if self.latent is None else self.head_dim - self.latent.rope_dim


@dataclass(frozen=True)
class CrossSpec:
    """Cross-attention to an encoder's output: keys and values at `length` positions, computed once per request.

    has_bias: of both projections. is_padded: sources may be shorter than `length`, and a mask excludes the rest.
    """

    num_attention_heads: int
    head_dim: int
    length: int
    scale: float
    has_bias: bool = True
    is_padded: bool = False

    @property
    def elements(self) -> int:
        """Elements of one sequence's cross-attention keys and values."""
        return 2 * self.num_attention_heads * self.length * self.head_dim


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention: all heads' keys and values of a token are expanded from one cached vector.

    Queries and keys have `nope_dim` elements without positions, then `rope_dim` rotated ones, which keys of all heads
    share; values have `value_dim`.
    query_rank: size of the latent vector of queries; None if queries are projected from the hidden state.
    Source: https://arxiv.org/abs/2405.04434, section 2.1.
    """

    nope_dim: int
    rope_dim: int
    value_dim: int
    query_rank: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Rows per head of the matrices that are split by heads, by name."""
        queries = self.nope_dim + self.rope_dim
        return {"q": queries, "q_b": queries, "kv_b": self.nope_dim + self.value_dim}
