"""A layer's feed-forward part as data: MLP or mixture of experts; Gemma's per-layer embeddings and AltUp streams."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trtkit.models.attention import NormSpec
from trtkit.models.share import WHOLE, Share

MOST_READ_BLOCKS = 3840
"""Maximum number of neuron blocks that a step can rank, the limit of TensorRT's TopK."""
_PAYS_BELOW = 3
"""Gathering rows reads, writes and reads them again, so it must select less than a third of a matrix to pay off."""


@dataclass(frozen=True)
class ActiveBlocks:
    """Activation sparsity: each new token reads `kept` blocks of neurons. block: neurons read together."""

    block: int
    kept: int

    def count_of(self, intermediate_size: int) -> int:
        """Return the number of blocks, the last of which may be partial."""
        return -(-intermediate_size // self.block)

    def most_tokens(self, count: int) -> int:
        """Return the largest number of new tokens for which a step gathers `kept` of `count` blocks each; at least 1.

        With more tokens, and with prompts, a step reads all blocks: gathering would cost more than it saves.
        """
        return max(1, min(count // (_PAYS_BELOW * self.kept), MOST_READ_BLOCKS // self.kept))


@dataclass(frozen=True)
class MlpSpec:
    """A feed-forward block: `down(act(gate(x)) * up(x))`, or `down(act(up(x)))` if not gated.

    is_fused: gate and up are one matrix, gate first. has_learned_activation: xIELU, which has weights.
    limit: gpt-oss's block: `down(gate * sigmoid(sigmoid_factor * gate) * (up + 1))`, with gate clamped to at most limit
        and up to [-limit, limit]. None: the usual block.
    gate_factor: factor of the gate before its activation. factor: of the block's output. norm: of `down`'s input.
    sparsity: gates become relu(gate - cutoff), where cutoff is this quantile of a normal distribution with the gates'
        mean and variance (Gemma 3n). 0: gates stay as they are.
    share: this rank's share of the intermediate size; the ranks' outputs are summed.
    active: which neurons a step reads; None for all.
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
    """How a router selects each token's `top_k` experts and weights their outputs.

    scores: what logits become: a softmax over all experts; sigmoids; or PhiMoE's sparse mixer, which selects two
        experts, each weighted by a softmax over the logits within a relative distance of `2 * jitter` from the largest.
    choice_bias_axes: a bias per expert that affects the selection, not the weights; it is stored as [E] (1) or [1, E]
        (2). 0: no bias.
    groups: consecutive experts form this many groups, and only the `top_groups` best groups are selected from.
    group_score: a group scores as its best expert (`max`), or as the sum of its two best (`two_best`).
    norm_topk_prob: selected scores are divided by their sum plus `sum_epsilon`, or by `min_sum` if that is larger.
    scales_inputs: weights multiply the experts' inputs instead of their outputs (Llama 4).
    softcap: of the router's logits; 0: none.
    scale: final factor of the weights. has_bias: of the router. is_fp32: the router's matrix product is in fp32.
    """

    top_k: int
    scores: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    norm_topk_prob: bool = True
    choice_bias_axes: int = 0
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "two_best"] = "max"
    min_sum: float = 0.0
    sum_epsilon: float = 0.0
    scale: float = 1.0
    jitter: float = 0.0
    softcap: float = 0.0
    scales_inputs: bool = False
    has_bias: bool = False
    is_fp32: bool = False


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts. `routing` selects each token's experts.

    shared: an expert for all tokens, weighted by the sigmoid of a router of its own if is_shared_gated.
    separate_norm: norms of a mixture that reads the layer's hidden state while the shared expert reads another input
        (Gemma 4): of the experts' input, of their sum and of the shared expert's output. The router's input is then
        normalized and scaled, and each expert's weight has a factor.
    norm: of the mixture's output, the shared expert included; None if there is none.
    latent_size: experts read a projection of this size, and their sum is projected back. None: they read the hidden
        state.
    share: the experts that this rank computes. Tokens are routed among all; the ranks' outputs are summed.
    """

    num_experts: int
    routing: RoutingSpec
    expert: MlpSpec
    shared: MlpSpec | None = None
    is_shared_gated: bool = False
    separate_norm: NormSpec | None = None
    norm: NormSpec | None = None
    latent_size: int | None = None
    has_latent_bias: bool = False
    share: Share = WHOLE

    def expert_inputs(self, hidden_size: int) -> int:
        """Return the number of elements that each expert reads and returns."""
        return hidden_size if self.latent_size is None else self.latent_size

    @property
    def joins_shared(self) -> bool:
        """Whether ranks can add the shared expert's output to the others' before they sum."""
        is_alike = self.shared is not None and self.shared.share.count == self.ranks and not self.shared.has_bias
        return is_alike and self.latent_size is None

    @property
    def reads_chosen(self) -> bool:
        """Whether a step may need fewer experts than this rank holds."""
        return self.routing.top_k < len(self.experts)

    @property
    def experts(self) -> range:
        return self.share.of(self.num_experts)

    @property
    def ranks(self) -> int:
        """Number of ranks over which the experts are distributed, whole or sliced."""
        return self.share.count * self.expert.share.count


Part = tuple[str, tuple[int, ...]]
"""A weight's path and shape."""


@dataclass(frozen=True)
class PerLayerSpec:
    """Per-layer embeddings (Gemma 3n, 4): a vector of `size` elements per layer and token, gated and added last.

    The vector is looked up by token and combined with a projection of the token's embedding.
    vocab_size: rows of the table; tokens beyond it use row 0. layers: number of layers in the table and the projection.
    Source: HF `Gemma3nTextModel`.
    """

    size: int
    vocab_size: int
    layers: int
    activation: str

    def outside(self, hidden_size: int) -> Iterator[Part]:
        """Yield the weights outside layers, except norms."""
        yield "per_layer_table.weight", (self.vocab_size, self.layers * self.size)
        yield "per_layer_projection.weight", (self.layers * self.size, hidden_size)

    def inside(self, hidden_size: int) -> Iterator[Part]:
        """Yield the weights of one layer, except norms."""
        yield "per_layer.gate.weight", (self.size, hidden_size)
        yield "per_layer.down.weight", (hidden_size, self.size)


@dataclass(frozen=True)
class StreamsSpec:
    """AltUp: `count` hidden states per token. A layer computes the one numbered `active` and predicts the others.

    is_scaled: the hidden state that gates the per-layer embedding is multiplied by a weight.
    laurel_rank: of LAuReL's low-rank residual next to attention.
    Source: AltUp, https://arxiv.org/abs/2301.13310; LAuReL, https://arxiv.org/abs/2411.07501.
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
