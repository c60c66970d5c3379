"""What a decoder-only language model computes, as data. The builder in `trtkit.network.decoder` reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Scaling = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True)
class Share:
    """One of `count` shares of something that several ranks hold together; `index` says which."""

    index: int = 0
    count: int = 1

    def of(self, size: int) -> range:
        """Return this share of `size` items: neighbours, the first shares one longer if they are not equal."""
        least, longer = divmod(size, self.count)
        start = self.index * least + min(self.index, longer)
        return range(start, start + least + (self.index < longer))


WHOLE = Share()


@dataclass(frozen=True)
class NormSpec:
    """A norm over the last axis. weight_offset: added to the stored weight (Gemma: 1)."""

    kind: Literal["rms", "layer"]
    eps: float
    weight_offset: float = 0.0
    has_weight: bool = True
    has_bias: bool = False


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding of the first `dim` elements of each head.

    is_interleaved: pairs are neighbours; otherwise element i of the two halves.
    max_position_embeddings: the model's own context length, which dynamic NTK scaling starts from.
    scaling, parameters: the method and its numbers under Hugging Face's names (`factor`, `beta_fast`, ...).
    sections: pairs that turn by time, height and width (M-RoPE), in turn; all by the one position where empty.
    is_reversed: pairs turn the other way (nanochat).
    query_growth: (beta, length): a query at position p is also multiplied by 1 + beta * log(1 + p // length).
    """

    theta: float
    dim: int
    is_interleaved: bool = False
    max_position_embeddings: int = 0
    scaling: Scaling = "default"
    parameters: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    sections: tuple[int, ...] = ()
    is_reversed: bool = False
    query_growth: tuple[float, int] | None = None


@dataclass(frozen=True)
class LearnedPositions:
    """A table of position vectors, added to the embedding. offset: rows before position 0 (OPT: 2)."""

    count: int
    offset: int = 0


@dataclass(frozen=True)
class SinusoidalPositions:
    """Sines, then cosines, of position + offset, added to the embedding (XGLM). zero_at: a position that adds nothing.

    Source: https://arxiv.org/abs/1706.03762, section 3.5, in tensor2tensor's order.
    """

    offset: int = 0
    zero_at: int | None = None


@dataclass(frozen=True)
class AttentionSpec:
    """Self-attention of one layer.

    scale: factor of the scores, usually head_dim ** -0.5.
    qkv: how the projections are stored: three matrices; one, `[q | k | v]`; one in which each key/value head follows
        its query heads (`grouped`); or one of four blocks `[q | v | k]`, each of a fourth of the heads (`fourths`).
    qk_norm: over each head, with one weight for all ("head"), a row for each ("each_head") or a weight of its own name
        for each ("listed_heads"); or over all heads together ("all"). is_rotated_first: it comes after the rotation.
    qkv_clip: queries, keys and values are limited to -qkv_clip .. qkv_clip before they are cut into
        heads, after a norm over all heads; None: no limit.
    softcap: scores become softcap * tanh(scores / softcap). has_sinks: one learned score per head joins the softmax.
    has_alibi: scores fall linearly with distance, by ALiBi's slopes times alibi_scale (Falcon: scale).
    rope: None if nothing turns. sliding_window: tokens that one sees, itself included; None for all.
    share: of all heads, of which these are one rank's; the ranks' outputs are summed.
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    scale: float
    qkv: Literal["separate", "concatenated", "grouped", "fourths"] = "separate"
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    norm: NormSpec | None = None
    qk_norm: Literal["none", "head", "each_head", "listed_heads", "all"] = "none"
    is_rotated_first: bool = False
    qkv_clip: float | None = None
    softcap: float | None = None
    has_sinks: bool = False
    has_alibi: bool = False
    alibi_scale: float = 1.0
    rope: RopeSpec | None = None
    sliding_window: int | None = None
    share: Share = WHOLE

    @property
    def cached_elements(self) -> int:
        """Elements of one token's key and value."""
        return 2 * self.num_key_value_heads * self.head_dim


@dataclass(frozen=True)
class MlpSpec:
    """A feed-forward block: `down(act(gate(x)) * up(x))`, or `down(act(up(x)))` where not gated.

    is_fused: gate and up are one matrix, gate first. has_learned_activation: xIELU, with weights of its own.
    share: of the intermediate size, of which this is one rank's; the ranks' outputs are summed.
    """

    intermediate_size: int
    activation: str
    is_gated: bool = True
    is_fused: bool = False
    has_bias: bool = False
    has_learned_activation: bool = False
    share: Share = WHOLE


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts: each token's `top_k` by router softmax; norm_topk_prob: their scores sum to 1.

    shared: an expert that all tokens take, weighted by a sigmoid of its own router if is_shared_gated.
    has_choice_bias: a bias of each expert's score counts for the choice, and not for the weights. least_sum: what the
        chosen experts' scores are divided by at least, if they are normalized.
    share: of the experts, which this rank computes; tokens are routed among all. The ranks' outputs are summed.
    """

    num_experts: int
    top_k: int
    expert: MlpSpec
    norm_topk_prob: bool
    shared: MlpSpec | None = None
    is_shared_gated: bool = True
    has_choice_bias: bool = False
    least_sum: float = 0.0
    share: Share = WHOLE

    @property
    def experts(self) -> range:
        """The experts that this rank computes."""
        return self.share.of(self.num_experts)

    @property
    def ranks(self) -> int:
        """How many ranks hold the experts together, whole ones or parts of each."""
        return self.share.count * self.expert.share.count


@dataclass(frozen=True)
class LayerSpec:
    """The parts of one layer, of which each may differ from other layers'."""

    attention: AttentionSpec
    feed_forward: MlpSpec | MoeSpec


@dataclass(frozen=True)
class BlockSpec:
    """How a layer joins its parts.

    norms: those of attention_norm, mlp_norm (before a part), post_attention_norm, post_mlp_norm (on what a part gives)
        that exist. A parallel layer without mlp_norm feeds attention_norm's result to both parts.
    is_parallel: attention and feed-forward read the same input; otherwise one after the other.
    is_post_norm: attention_norm and mlp_norm come after their residual sum.
    """

    norm: NormSpec
    norms: tuple[str, ...] = ("attention_norm", "mlp_norm")
    is_parallel: bool = False
    is_post_norm: bool = False
    residual_multiplier: float = 1.0


@dataclass(frozen=True)
class HeadSpec:
    """From the last hidden state to logits: norm, projection, factor, soft cap."""

    norm: NormSpec | None
    is_tied: bool
    has_bias: bool = False
    logit_scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True)
class EmbeddingSpec:
    """From ids to the first hidden state."""

    scale: float = 1.0
    positions: LearnedPositions | SinusoidalPositions | None = None
    norm: NormSpec | None = None


@dataclass(frozen=True)
class DecoderSpec:
    """A whole model. names: checkpoint names by module path (see `trtkit.models.weights`).

    max_position_embeddings: the longest sequence that the model was made for; 0 where there is no such limit.
    is_in_out: matrices inside layers are stored [in, out] (GPT-2's Conv1D).
    prefix: what a checkpoint of the bare model leaves off all names; empty where nothing is.
    vocab_share: of the rows of embedding and head, which this rank holds. stage: of the model's layers, which this
        pipeline stage computes; `layers` are those, numbered from `first_layer` on.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    layers: tuple[LayerSpec, ...]
    block: BlockSpec
    head: HeadSpec
    names: Mapping[str, str]
    embedding: EmbeddingSpec = EmbeddingSpec()
    is_in_out: bool = False
    prefix: str = ""
    vocab_share: Share = WHOLE
    stage: Share = WHOLE
    first_layer: int = 0

    @property
    def is_first_stage(self) -> bool:
        """Whether this stage begins with token ids, and holds the embedding."""
        return self.stage.index == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this stage ends with logits, and holds the head."""
        return self.stage.index == self.stage.count - 1

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and of the head that every rank holds; those beyond the vocabulary are not used."""
        return -(-self.vocab_size // self.vocab_share.count)

    @property
    def numbered_layers(self) -> Iterator[tuple[int, LayerSpec]]:
        """The layers with their numbers in the whole model."""
        return enumerate(self.layers, self.first_layer)

    @property
    def cached_elements(self) -> int:
        """Elements that the caches of all layers hold of one token."""
        return sum(layer.attention.cached_elements for layer in self.layers)
