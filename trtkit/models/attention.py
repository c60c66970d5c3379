"""Attention of one layer, its norms and its rotary embedding, or multi-head latent attention, as data."""

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
class QueryGrowth:
    """A query at position p is also multiplied by 1 + beta * log(1 + (p + first) // length)."""

    beta: float
    length: int
    first: int = 0


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding of the first `dim` elements of each head.

    is_interleaved: pairs are neighbours; otherwise element i of the two halves.
    max_position_embeddings: the model's own context length, which dynamic NTK scaling starts from.
    scaling, parameters: the method and its numbers under Hugging Face's names (`factor`, `beta_fast`, ...).
    sections: pairs that turn by time, height and width (M-RoPE), in turn; all by the one position where empty.
    are_sections_interleaved: height has each third pair from the second on, width from the third on, as many as their
        sections; time has the others.
    is_reversed: pairs turn the other way (nanochat).
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
    """Factors of the heads' outputs: activations of what a matrix of their own gives. is_by_head: one for each head."""

    activation: Literal["sigmoid", "softplus"]
    is_by_head: bool = False


@dataclass(frozen=True)
class RelativeSpec:
    """A learned score of each head for a key's distance, by `buckets` that widen up to `max_distance` (T5).

    layer: whose table of scores [buckets, N] it is.
    """

    buckets: int
    max_distance: int
    layer: int


@dataclass(frozen=True)
class AttentionSpec:
    """Self-attention of one layer.

    scale: factor of the scores, usually head_dim ** -0.5.
    qkv: how the projections are stored: three matrices; one, `[q | k | v]`; one in which each key/value head follows
        its query heads (`grouped`); one of four blocks `[q | v | k]`, each of a fourth of the heads (`fourths`); or two
        matrices, of queries and of keys, which are also the values (`no_values`).
    has_key_bias: if the projections have biases, that of keys too.
    qk_norm: over each head, with one weight for all ("head"), a row for each ("each_head") or a weight of its own name
        for each ("listed_heads"); or over all heads together ("all"). is_rotated_first: it comes after the rotation.
    qkv_clip: queries, keys and values are limited to -qkv_clip .. qkv_clip before they are cut into
        heads, after a norm over all heads; None: no limit.
    softcap: scores become softcap * tanh(scores / softcap). has_sinks: one learned score per head joins the softmax.
    has_alibi: scores fall linearly with distance, by ALiBi's slopes times alibi_scale (Falcon: scale).
    relative: scores that are added by distance; None if there are none.
    rope: None if nothing turns. sliding_window: tokens that one sees, itself included; None for all. chunk: positions
        are in chunks of that many, and tokens see those of their own chunk. query_growth: None if queries stay.
    latent: if there is one, all heads share a key/value head of its rank and rope_dim elements, the first of which,
        expanded for each head, are its values. norm is then that of the compressed vectors.
    is_gated: the heads' outputs are multiplied by sigmoids of gates, which follow each head's query in `q`.
    value_dim: elements of a head's values, if fewer than of its keys; caches hold zeros in place of the others, since
        TensorRT's attention takes keys and values of one size. value_scale: factor of the values. key_factor: of the
        keys, which `scale` has in it and caches do not.
    gate: gates that have a matrix of their own, `z`; None if there are none.
    value_norm: over each head's values. output_norm: over what all heads give together, before `o`.
    cache_of: number of the layer whose keys and values it reads, if it has none.
    share: of all heads, of which these are one rank's; the ranks' outputs are summed.
    context: of the cached positions, which this rank attends to, with the query heads of all ranks.
    context_heads: of the key/value heads that these ranks bring, in order, those that differ, which each rank caches.
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
    query_growth: QueryGrowth | None = None
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
        """Names of the layer's caches, each of `cached_heads` heads of head_dim elements a token."""
        if self.cache_of is not None:
            return ()
        return ("key", "value") if self.latent is None else ("latent",)

    def has_bias(self, projection: str) -> bool:
        """Whether the matrix of queries (`q`), keys (`k`) or values (`v`) has a bias."""
        return self.has_qkv_bias and (projection != "k" or self.has_key_bias)

    @property
    def projections(self) -> tuple[str, ...]:
        """Names of the matrices of queries, keys and values, if each has its own."""
        if self.cache_of is not None:
            return ("q",)
        return ("q", "k") if self.qkv == "no_values" else ("q", "k", "v")

    @property
    def cached_heads(self) -> int:
        """Key/value heads of the layer's caches."""
        return len(self.context_heads) or self.num_key_value_heads

    @property
    def attending_heads(self) -> int:
        """Query heads that attend to the layer's caches: those of all ranks, if these share its positions."""
        return self.num_attention_heads * self.context.count

    @property
    def attending_share(self) -> Share:
        """The share of all heads that they are."""
        return self.share if self.context.count == 1 else WHOLE

    @property
    def cached_elements(self) -> int:
        """Elements that the layer's caches hold of one token."""
        return len(self.caches) * self.cached_heads * self.head_dim

    @property
    def output_size(self) -> int:
        """Elements of all heads' outputs, which the output projection reads."""
        value_size = self.head_dim if self.value_dim is None else self.value_dim
        return self.num_attention_heads * (value_size if self.latent is None else self.latent.value_dim)

    @property
    def used_value_size(self) -> int:
        """Elements of what attention gives that are used, the first; caches may hold more of each value."""
        if self.latent is not None:
            return self.latent_rank
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def gate_size(self) -> int:
        """Gates of one head, if they have a matrix of their own."""
        return 1 if self.gate is not None and self.gate.is_by_head else self.head_dim

    @property
    def latent_rank(self) -> int:
        """Elements of the vector that keys and values come from; 0 if there is none."""
        return 0 if self.latent is None else self.head_dim - self.latent.rope_dim


@dataclass(frozen=True)
class CrossSpec:
    """Attention to what an encoder made of a request: keys and values of `length` places, computed once by a stage.

    has_bias: of both projections. is_padded: requests fill as many places as they have tokens, and a mask says which.
    """

    num_attention_heads: int
    head_dim: int
    length: int
    scale: float
    has_bias: bool = True
    is_padded: bool = False

    @property
    def elements(self) -> int:
        """Elements of one sequence's keys and values."""
        return 2 * self.num_attention_heads * self.length * self.head_dim


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention: a token's keys and values of all heads come from one vector, which is cached.

    Queries and keys are `nope_dim` elements, followed by `rope_dim` that turn and whose keys all heads share; values
    have `value_dim`. query_rank: size of the vector that queries come from; None if they come from the hidden state.
    Source: https://arxiv.org/abs/2405.04434, section 2.1.
    """

    nope_dim: int
    rope_dim: int
    value_dim: int
    query_rank: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of one head in the matrices that have heads, by their names."""
        queries = self.nope_dim + self.rope_dim
        return {"q": queries, "q_b": queries, "kv_b": self.nope_dim + self.value_dim}
