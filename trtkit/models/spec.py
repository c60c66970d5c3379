"""A decoder-only language model as data: what it computes. `trtkit.network.decoder` writes the network from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from trtkit.dtypes import INT32, DType
from trtkit.models.attention import AttentionSpec, CrossSpec, NormSpec
from trtkit.models.feed_forward import MlpSpec, MoeSpec, PerLayerSpec, StreamsSpec
from trtkit.models.recurrent import ParallelMixer, RecurrentSpec, StateSpec
from trtkit.models.share import WHOLE, Share


@dataclass(frozen=True)
class LearnedPositions:
    """Learned position embeddings, `count` rows. offset: the row of position 0 (OPT: 2)."""

    count: int
    offset: int = 0


@dataclass(frozen=True)
class SinusoidalPositions:
    """Sinusoidal position embeddings of position + offset, sines first (XGLM). zero_at: a position that has none.

    Source: https://arxiv.org/abs/1706.03762, section 3.5, in tensor2tensor's order.
    """

    offset: int = 0
    zero_at: int | None = None


@dataclass(frozen=True)
class LayerSpec:
    """One layer's parts.

    mixer: attention or a recurrence; None, like a feed-forward part of None, if the layer lacks it and its norms.
    cross: cross-attention to an encoder, if there is one.
    parallel_mixer: a recurrent mixer in parallel with attention, if there is one.
    """

    mixer: AttentionSpec | RecurrentSpec | None
    feed_forward: MlpSpec | MoeSpec | None
    cross: CrossSpec | None = None
    parallel_mixer: ParallelMixer | None = None

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer that has attention."""
        assert isinstance(self.mixer, AttentionSpec)
        return self.mixer

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The recurrent states that the layer keeps per sequence."""
        return () if self.recurrent is None else self.recurrent.states

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """The layer's recurrent mixer, alone or next to attention."""
        if isinstance(self.mixer, AttentionSpec):
            return None if self.parallel_mixer is None else self.parallel_mixer.mixer
        return self.mixer

    def has_norm(self, name: str) -> bool:
        """Whether the layer has the part that a norm belongs to."""
        parts = {"attention_norm": self.mixer, "post_attention_norm": self.mixer, "cross_norm": self.cross}
        return parts.get(name, self.feed_forward) is not None


@dataclass(frozen=True)
class BlockSpec:
    """How a layer combines its parts.

    norms: which norms exist, of attention_norm, cross_norm, mlp_norm (on a part's input), post_attention_norm and
        post_mlp_norm (on its output). In a parallel layer without mlp_norm, both parts read attention_norm's output.
    is_parallel: attention and feed-forward read the same input; otherwise they run one after the other.
    is_post_norm: attention_norm and mlp_norm follow the residual sums.
    per_layer: per-layer embeddings, added last. has_scalar: the layer's output is multiplied by a learned number.
    streams: several hidden states per token (AltUp); requires all four norms and `per_layer`.
    """

    norm: NormSpec
    norms: tuple[str, ...] = ("attention_norm", "mlp_norm")
    is_parallel: bool = False
    is_post_norm: bool = False
    residual_multiplier: float = 1.0
    per_layer: PerLayerSpec | None = None
    has_scalar: bool = False
    streams: StreamsSpec | None = None


@dataclass(frozen=True)
class HeadSpec:
    """From the last hidden state to logits: norm, projection, logit_scale, soft cap, in this order."""

    norm: NormSpec | None
    is_tied: bool
    has_bias: bool = False
    logit_scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True)
class EmbeddingSpec:
    """From token ids to the first hidden state: lookup, scale, positions, norm."""

    scale: float = 1.0
    positions: LearnedPositions | SinusoidalPositions | None = None
    norm: NormSpec | None = None


@dataclass(frozen=True)
class DecoderSpec:
    """A whole decoder, or the part of it that one rank computes.

    max_position_embeddings: the model's context length; 0 if it is unlimited.
    names: checkpoint names by module path (see `trtkit.models.weights`).
    is_in_out: matrices inside layers are stored [in, out] (GPT-2's Conv1D).
    prefix: the prefix of all names, which checkpoints of the model without its LM head omit; may be empty.
    unused: name prefixes of weights that checkpoints hold for other uses, such as multi-token prediction.
    table_copies: names under which checkpoints may repeat the embedding.
    vocab_share: this rank's share of the rows of the embedding and the LM head.
    stage: this pipeline stage's share of the model's layers: `layers`, the first of which is number `first_layer`.
    token_share: this rank's share of a call's tokens in norms and residual sums.
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
    unused: tuple[str, ...] = ()
    table_copies: tuple[str, ...] = ()
    vocab_share: Share = WHOLE
    stage: Share = WHOLE
    first_layer: int = 0
    token_share: Share = WHOLE

    @property
    def is_first_stage(self) -> bool:
        """Whether this pipeline stage reads token ids and holds the embedding."""
        return self.stage.index == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this pipeline stage returns logits and holds the LM head."""
        return self.stage.index == self.stage.count - 1

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and the LM head on each rank, including those that pad the vocabulary."""
        return -(-self.vocab_size // self.vocab_share.count)

    @property
    def numbered_layers(self) -> Iterator[tuple[int, LayerSpec]]:
        """This stage's layers with their numbers in the whole model."""
        return enumerate(self.layers, self.first_layer)

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        return tuple(layer.mixer for layer in self.layers if isinstance(layer.mixer, AttentionSpec))

    @property
    def context(self) -> Share:
        """This rank's share of a sequence's cached positions."""
        return next((attention.context for attention in self.attentions), WHOLE)

    @property
    def cached_elements(self) -> int:
        """Elements per token in the caches of all layers, on the rank that caches the token."""
        return sum(attention.cached_elements for attention in self.attentions)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        return tuple(state for layer in self.layers for state in layer.states)

    @property
    def most_new_tokens(self) -> int | None:
        """Maximum new tokens per sequence in one call of the model's network; None if unlimited."""
        limits = (layer.recurrent.most_new_tokens for layer in self.layers if layer.recurrent is not None)
        return min((limit for limit in limits if limit is not None), default=None)

    def state_bytes(self, dtype: DType) -> int:
        """Return the size of one sequence's recurrent states and cross-attention keys and values."""
        crosses = [layer.cross for layer in self.layers if layer.cross is not None]
        encoded = dtype.size_bytes(sum(cross.elements for cross in crosses))
        mask = max((INT32.size_bytes(cross.length) for cross in crosses if cross.is_padded), default=0)
        return sum(state.size_bytes(dtype) for state in self.states) + encoded + mask

    def with_source_length(self, length: int) -> DecoderSpec:
        """Return the spec with cross-attention to sources of up to `length` tokens."""

        def longer(cross: CrossSpec | None) -> CrossSpec | None:
            return replace(cross, length=length) if cross is not None and cross.is_padded else cross

        return replace(self, layers=tuple(replace(layer, cross=longer(layer.cross)) for layer in self.layers))

    @property
    def reads_encoder(self) -> bool:
        """Whether layers read an encoder's output."""
        return any(layer.cross is not None for layer in self.layers)
