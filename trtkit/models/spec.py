"""The computation of a decoder-only language model as data. The builder in `trtkit.network.decoder` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from trtkit.dtypes import INT32, DType
from trtkit.models.attention import AttentionSpec, CrossSpec, NormSpec
from trtkit.models.feed_forward import MlpSpec, MoeSpec, PerLayerSpec, StreamsSpec
from trtkit.models.recurrent import BesideSpec, RecurrentSpec, StateSpec
from trtkit.models.share import WHOLE, Share


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
class LayerSpec:
    """The parts of one layer, of which each may differ from other layers'.

    mixer: what joins tokens. alongside: a recurrent mixer next to attention. cross: what reads the encoder, if there is
    one. A layer may lack its mixer or its feed-forward, with the part's norms.
    """

    mixer: AttentionSpec | RecurrentSpec | None
    feed_forward: MlpSpec | MoeSpec | None
    cross: CrossSpec | None = None
    beside: BesideSpec | None = None

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer that is known to have attention."""
        assert isinstance(self.mixer, AttentionSpec)
        return self.mixer

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The states that the layer keeps for each sequence."""
        return () if self.recurrent is None else self.recurrent.states

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """The layer's recurrent mixer, alone or next to attention."""
        if isinstance(self.mixer, AttentionSpec):
            return None if self.beside is None else self.beside.mixer
        return self.mixer

    def has_norm(self, name: str) -> bool:
        """Whether the layer has the part that a norm belongs to."""
        parts = {"attention_norm": self.mixer, "post_attention_norm": self.mixer, "cross_norm": self.cross}
        return parts.get(name, self.feed_forward) is not None


@dataclass(frozen=True)
class BlockSpec:
    """How a layer joins its parts.

    norms: those of attention_norm, cross_norm, mlp_norm (before a part), post_attention_norm, post_mlp_norm (on what a
        part gives) that exist. A parallel layer without mlp_norm feeds attention_norm's result to both parts.
    is_parallel: attention and feed-forward read the same input; otherwise one after the other.
    is_post_norm: attention_norm and mlp_norm come after their residual sum.
    per_layer: what each layer adds last. has_scalar: the layer's output is multiplied by a number of its own.
    streams: several hidden states of each token; they have all four norms and `per_layer`.
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

    max_position_embeddings: the longest sequence that the model was made for; 0 if there is no such limit.
    is_in_out: matrices inside layers are stored [in, out] (GPT-2's Conv1D).
    prefix: what a checkpoint of the bare model leaves off all names; empty if nothing is.
    unused: how the names of weights begin that checkpoints hold for other uses, such as predicting later tokens.
    table_copies: names under which checkpoints may repeat the embedding.
    vocab_share: of the rows of embedding and head, which this rank holds. stage: of the model's layers, which this
        pipeline stage computes; `layers` are those, numbered from `first_layer` on. token_share: of a call's tokens,
        which this rank norms and adds between blocks.
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
        """Whether this stage begins with token ids, and holds the embedding."""
        return self.stage.index == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this stage ends with logits and holds the head."""
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
    def attentions(self) -> tuple[AttentionSpec, ...]:
        return tuple(layer.mixer for layer in self.layers if isinstance(layer.mixer, AttentionSpec))

    @property
    def context(self) -> Share:
        """The share of a sequence's positions that this rank caches."""
        return next((attention.context for attention in self.attentions), WHOLE)

    @property
    def cached_elements(self) -> int:
        """Elements that the caches of all layers hold of one token, on the rank that caches it."""
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
        """Return the bytes of one sequence's recurrent states, and of what its layers read of an encoder."""
        crosses = [layer.cross for layer in self.layers if layer.cross is not None]
        encoded = dtype.size_bytes(sum(cross.elements for cross in crosses))
        mask = max((INT32.size_bytes(cross.length) for cross in crosses if cross.is_padded), default=0)
        return sum(state.size_bytes(dtype) for state in self.states) + encoded + mask

    def with_source_length(self, length: int) -> DecoderSpec:
        """Return the model with slots for what an encoder makes of texts of up to `length` tokens."""

        def longer(cross: CrossSpec | None) -> CrossSpec | None:
            return replace(cross, length=length) if cross is not None and cross.is_padded else cross

        return replace(self, layers=tuple(replace(layer, cross=longer(layer.cross)) for layer in self.layers))

    @property
    def reads_encoder(self) -> bool:
        """Whether layers read an encoder's output."""
        return any(layer.cross is not None for layer in self.layers)
