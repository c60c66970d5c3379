"""Feed-forward parts of a layer as data: MLPs, mixtures of experts, and Gemma's per-layer vectors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trtkit.models.attention import NormSpec
from trtkit.models.share import WHOLE, Share

MOST_READ_BLOCKS = 3840
"""Maximum number of neuron blocks that a step can rank, the limit of TensorRT's TopK."""
_PAYS_BELOW = 3
"""Gathered rows are read, written and read again, so that all of them cost as much as three times the matrix."""


@dataclass(frozen=True)
class ActiveBlocks:
    """How many blocks of neurons each new token reads. block: neurons that are read together. kept: blocks."""

    block: int
    kept: int

    def count_of(self, intermediate_size: int) -> int:
        """Return the number of blocks, the last of which may be partial."""
        return -(-intermediate_size // self.block)

    def most_tokens(self, count: int) -> int:
        """Return up to how many new tokens a step reads `kept` of `count` blocks for each: at least one.

        More read all, as do steps with prompts: gathering then costs more than it saves.
        """
        return max(1, min(count // (_PAYS_BELOW * self.kept), MOST_READ_BLOCKS // self.kept))


@dataclass(frozen=True)
class MlpSpec:
    """A feed-forward block: `down(act(gate(x)) * up(x))`, or `down(act(up(x)))` where not gated.

    is_fused: gate and up are one matrix, gate first. has_learned_activation: xIELU, with weights of its own.
    limit: gate is at most that, `up` is within it to both sides, and the block is `down(gate * sigmoid(sigmoid_factor *
        gate) * (up + 1))` (gpt-oss). None: no limit, and none of this.
    gate_factor: of gates before their activation. factor: of the block's output. norm: of what `down` reads.
    sparsity: gates count by how far they exceed this quantile of a normal distribution of their mean and variance; 0:
        all count.
    share: of the intermediate size, of which this is one rank's; the ranks' outputs are summed.
    active: which neurons a step reads the rows of; all if None.
    """

    intermediate_size: int
    activation: str
    is_gated: bool = True
    is_fused: bool = False
    has_bias: bool = False
    has_learned_activation: bool = False
    limit: float | None = None
    sigmoid_factor: float = 1.0
    sparsity: float = 0.0
    gate_factor: float = 1.0
    factor: float = 1.0
    norm: NormSpec | None = None
    share: Share = WHOLE
    active: ActiveBlocks | None = None


@dataclass(frozen=True)
class RoutingSpec:
    """How a mixture chooses each token's `top_k` experts by a router, and weighs them.

    scores: of the router's logits: a softmax over all experts, each one's sigmoid, or a sparse mixer, whose two choices
        are each weighed by a softmax over the logits within `2 * jitter` of the largest, relative to their size.
    choice_bias_axes: a bias of each expert's score counts for the choice, and not for the weights; it is stored as [E]
        (1) or [1, E] (2). 0: there is none.
    groups: experts are in that many groups, neighbours in each; only those in the `top_groups` best are chosen from. A
        group is as good as its best expert (`max`) or its two best together (`two_best`).
    norm_topk_prob: the chosen scores are divided by their sum plus `added_to_sum`, or by `least_sum` if it is more.
    scales_inputs: weights are multiplied with experts' inputs, and not with their outputs.
    softcap: of the router's logits; 0: none.
    scale: factor of the weights in the end. has_bias: of the router. is_fp32: its product is in fp32 too.
    """

    top_k: int
    scores: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    norm_topk_prob: bool = True
    choice_bias_axes: int = 0
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "two_best"] = "max"
    least_sum: float = 0.0
    added_to_sum: float = 0.0
    scale: float = 1.0
    jitter: float = 0.0
    softcap: float = 0.0
    scales_inputs: bool = False
    has_bias: bool = False
    is_fp32: bool = False


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts, of which `routing` chooses each token's.

    shared: an expert that all tokens take, weighted by a sigmoid of its own router if is_shared_gated.
    apart: norms of the mixture, if it reads the layer's hidden state and not what the shared expert does: of what
        experts read, of their sum and of the shared expert's output. The router's inputs are normed and scaled, and
        each expert's weights have a factor (Gemma 4).
    norm: of what the mixture gives, the shared expert included; None if there is none.
    latent_size: experts read a projection of so many elements, and their sum is projected back. None: they read x.
    share: of the experts, which this rank computes; tokens are routed among all. The ranks' outputs are summed.
    """

    num_experts: int
    routing: RoutingSpec
    expert: MlpSpec
    shared: MlpSpec | None = None
    is_shared_gated: bool = False
    apart: NormSpec | None = None
    norm: NormSpec | None = None
    latent_size: int | None = None
    has_latent_bias: bool = False
    share: Share = WHOLE

    def expert_inputs(self, hidden_size: int) -> int:
        """Return the number of elements that each expert reads and returns."""
        return hidden_size if self.latent_size is None else self.latent_size

    @property
    def joins_shared(self) -> bool:
        """Whether ranks sum the outputs of the shared expert and of the others together."""
        is_alike = self.shared is not None and self.shared.share.count == self.ranks and not self.shared.has_bias
        return is_alike and self.latent_size is None

    @property
    def reads_chosen(self) -> bool:
        """Whether a step can do with fewer experts than this rank holds."""
        return self.routing.top_k < len(self.experts)

    @property
    def experts(self) -> range:
        return self.share.of(self.num_experts)

    @property
    def ranks(self) -> int:
        """Number of ranks that hold the experts together, whole ones or parts of each."""
        return self.share.count * self.expert.share.count


Part = tuple[str, tuple[int, ...]]
"""A weight's path, and its shape."""


@dataclass(frozen=True)
class PerLayerSpec:
    """A vector of `size` elements for each layer and token, which gates what the layer adds last.

    It is looked up by the token and joined with a projection of the token's embedding. vocab_size: rows of the table;
    a token beyond them has the vector of token 0. layers: how many layers the table and the projection are for.
    Source: HF `Gemma3nTextModel`.
    """

    size: int
    vocab_size: int
    layers: int
    activation: str

    def outside(self, hidden_size: int) -> Iterator[Part]:
        """Yield the weights outside of layers, except norms."""
        yield "per_layer_table.weight", (self.vocab_size, self.layers * self.size)
        yield "per_layer_projection.weight", (self.layers * self.size, hidden_size)

    def inside(self, hidden_size: int) -> Iterator[Part]:
        """Yield the weights of one layer, except norms."""
        yield "per_layer.gate.weight", (self.size, hidden_size)
        yield "per_layer.down.weight", (hidden_size, self.size)


@dataclass(frozen=True)
class StreamsSpec:
    """`count` hidden states of each token, of which a layer computes the one numbered `active` and predicts the others.

    is_scaled: what gates the layer's own vector is multiplied by a weight. laurel_rank: of a low-rank sum next to
    attention. Source: AltUp, https://arxiv.org/abs/2301.13310; LAuReL, https://arxiv.org/abs/2411.07501.
    """

    count: int
    active: int
    is_scaled: bool
    laurel_rank: int

    def outside(self, hidden_size: int) -> Iterator[Part]:
        for name in ("in", "out"):
            for index in range(self.count - 1):
                yield f"streams.{name}.{index}.weight", (hidden_size, hidden_size)

    def inside(self, hidden_size: int) -> Iterator[Part]:
        """Yield the weights of one layer, except norms."""
        yield "streams.router.weight", (self.count, hidden_size)
        yield "streams.predict.weight", (self.count**2, self.count)
        yield "streams.correct.weight", (self.count, self.count)
        yield "streams.scale", (hidden_size,)
        yield "laurel.left.weight", (self.laurel_rank, hidden_size)
        yield "laurel.right.weight", (hidden_size, self.laurel_rank)
