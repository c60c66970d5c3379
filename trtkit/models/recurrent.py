"""Recurrent layers as data: short convolutions, gated delta nets, Mamba-2. They keep states of fixed size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal

from trtkit.dtypes import FP32, DType
from trtkit.models.share import WHOLE, Share

Groups = tuple[tuple[int, int], ...]
"""Consecutive parts of an axis, each (number of heads or channels, size of one)."""


@dataclass(frozen=True)
class StateSpec:
    """A state that a layer keeps per sequence. shape: without the batch axis. is_fp32: whatever the network's type."""

    name: str
    shape: tuple[int, ...]
    is_fp32: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def size_bytes(self, dtype: DType) -> int:
        """Return the size of one sequence's state in a network of type `dtype`."""
        return (FP32 if self.is_fp32 else dtype).size_bytes(self.elements)


@dataclass(frozen=True)
class RecurrentWeight:
    """A layer's weight. shared: groups of its rows (or columns), which ranks split; None if it is not split."""

    name: str
    shape: tuple[int, ...]
    shared: Groups | None = None
    is_by_column: bool = False


def _by_row(name: str, groups: Groups, *rest: int) -> RecurrentWeight:
    return RecurrentWeight(name, (_size(groups), *rest), groups)


def _by_column(name: str, rows: int, groups: Groups) -> RecurrentWeight:
    return RecurrentWeight(name, (rows, _size(groups)), groups, is_by_column=True)


def _size(groups: Groups) -> int:
    return sum(count * size for count, size in groups)


@dataclass(frozen=True)
class ConvSpec:
    """A gated short convolution: `out(c * conv(b * x))` with `[b | c | x] = in(hidden)`.

    channels: of b, c and x each; the convolution is depthwise. kernel: tokens it reads, the current one included.
    has_bias: of both projections and of the convolution.
    share: this rank's share of the channels; the ranks' outputs are summed.
    Source: LFM2, https://arxiv.org/abs/2511.23404.
    """

    channels: int
    kernel: int
    has_bias: bool = False
    share: Share = WHOLE

    part: ClassVar[str] = "conv"
    most_new_tokens: ClassVar[int | None] = None

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The convolution's inputs of earlier tokens."""
        return (StateSpec("conv", (self.kernel - 1, self.channels)),)

    @property
    def counts(self) -> tuple[int, ...]:
        """What ranks share."""
        return (self.channels,)

    def of(self, share: Share) -> ConvSpec:
        return replace(self, channels=len(share.of(self.channels)), share=share)

    def weights(self, hidden_size: int) -> Iterator[RecurrentWeight]:
        """Yield the weights by their paths in the layer's part."""
        channels = ((self.channels, 1),)
        yield _by_row("in.weight", channels * 3, hidden_size)
        yield _by_row("taps.weight", channels, 1, self.kernel)
        yield _by_column("out.weight", hidden_size, channels)
        if self.has_bias:
            yield _by_row("in.bias", channels * 3)
            yield _by_row("taps.bias", channels)
            yield RecurrentWeight("out.bias", (hidden_size,))


@dataclass(frozen=True)
class DeltaNetSpec:
    """A gated delta net: each value head keeps a matrix from keys to values, which decays and follows the delta rule.

    Queries, keys and values pass a depthwise convolution and an activation; consecutive value heads share a key head.
    The normed output of each value head is multiplied by silu of a gate, z.
    key_dim, value_dim: of one head. kernel: tokens that the convolution reads, the current one included.
    is_grouped: projections are stored as `[q | k | v | z]` and `[b | a]` per key head; otherwise as `[q | k | v]` over
        all heads, with z, b and a separate.
    is_by_channel: Kimi's delta attention. Each element of a key head has its own decay; decays and z are projected
        through value_dim elements, z passes a sigmoid, and q, k and v are stored separately.
    share: this rank's share of the heads; the ranks' outputs are summed.
    Source: https://arxiv.org/abs/2412.06464, and https://arxiv.org/abs/2510.26692 by channel.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    activation: str
    eps: float
    is_grouped: bool = False
    is_by_channel: bool = False
    share: Share = WHOLE

    part: ClassVar[str] = "delta"
    most_new_tokens: ClassVar[int | None] = 64

    @property
    def channels(self) -> Groups:
        """The convolution's channels: queries, keys and values."""
        return (self.key_heads, self.key_dim), (self.key_heads, self.key_dim), (self.value_heads, self.value_dim)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The convolution's inputs of earlier tokens, and each value head's matrix."""
        matrices = (self.value_heads, self.key_dim, self.value_dim)
        return StateSpec("conv", (self.kernel - 1, _size(self.channels))), StateSpec("delta", matrices, is_fp32=True)

    @property
    def counts(self) -> tuple[int, ...]:
        """What ranks share."""
        return self.key_heads, self.value_heads

    def of(self, share: Share) -> DeltaNetSpec:
        heads = len(share.of(self.key_heads)), len(share.of(self.value_heads))
        return replace(self, key_heads=heads[0], value_heads=heads[1], share=share)

    def weights(self, hidden_size: int) -> Iterator[RecurrentWeight]:
        """Yield the weights by their paths in the layer's part."""
        if self.is_by_channel:
            yield from self._weights_by_channel(hidden_size)
            return
        heads, values = ((self.value_heads, 1),), ((self.value_heads, self.value_dim),)
        if self.is_grouped:
            group = self.value_heads // self.key_heads
            one = 2 * self.key_dim + 2 * group * self.value_dim
            yield _by_row("qkvz.weight", ((self.key_heads, one),), hidden_size)
            yield _by_row("ba.weight", ((self.key_heads, 2 * group),), hidden_size)
        else:
            yield _by_row("qkv.weight", self.channels, hidden_size)
            yield _by_row("z.weight", values, hidden_size)
            yield _by_row("b.weight", heads, hidden_size)
            yield _by_row("a.weight", heads, hidden_size)
        yield _by_row("taps.weight", self.channels, 1, self.kernel)
        yield _by_row("dt_bias", heads)
        yield _by_row("a_log", heads)
        yield RecurrentWeight("norm.weight", (self.value_dim,))
        yield _by_column("out.weight", hidden_size, values)

    def _weights_by_channel(self, hidden_size: int) -> Iterator[RecurrentWeight]:
        keys, values = self.channels[1:2], self.channels[2:]
        for name, rows in zip("qkv", (keys, keys, values), strict=True):
            yield _by_row(f"{name}.weight", rows, hidden_size)
        yield _by_row("taps.weight", self.channels, 1, self.kernel)
        for name, rows in (("decay", keys), ("gate", values)):
            yield RecurrentWeight(f"{name}_in.weight", (self.value_dim, hidden_size))
            yield _by_row(f"{name}_out.weight", rows, self.value_dim)
        yield _by_row("b.weight", ((self.value_heads, 1),), hidden_size)
        yield _by_row("dt_bias", keys)
        yield RecurrentWeight("a_log", (1, 1, self.value_heads * self.share.count, 1))  # of all ranks
        yield RecurrentWeight("norm.weight", (self.value_dim,))
        yield _by_column("out.weight", hidden_size, values)


@dataclass(frozen=True)
class MambaSpec:
    """A Mamba-2 layer: each head keeps a matrix from state elements to values, which decays as new values are added.

    `[z | x | b | c | dt] = in(hidden)`; x, b and c pass a depthwise convolution and an activation. Each head has its
    own x, step dt and decay; the heads of a group share b and c, of state_size elements each. A head's output plus `d`
    times its x is multiplied by silu(z), and the heads of a group are normalized together.
    kernel: tokens that the convolution reads, the current one included. min_step: minimum of dt after its softplus.
    norm: after the product with silu(z), before it, or none. factors: of the projected z, x, b, c and dt.
    share: this rank's share of heads and groups; the ranks' outputs are summed.
    Source: https://arxiv.org/abs/2405.21060.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    kernel: int
    activation: str
    eps: float
    has_bias: bool = False
    has_output_bias: bool = False
    has_conv_bias: bool = True
    min_step: float = 0.0
    norm: Literal["after_gate", "before_gate", "none"] = "after_gate"
    factors: tuple[float, ...] = (1.0,) * 5
    share: Share = WHOLE

    part: ClassVar[str] = "mamba"
    most_new_tokens: ClassVar[int | None] = 64

    @property
    def values(self) -> tuple[int, int]:
        return self.heads, self.head_dim

    @property
    def channels(self) -> Groups:
        """The convolution's channels: x, b and c."""
        return self.values, (self.groups, self.state_size), (self.groups, self.state_size)

    @property
    def projected(self) -> Groups:
        """The input projection's outputs: z, x, b, c and dt."""
        return self.values, *self.channels, (self.heads, 1)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The convolution's inputs of earlier tokens, and each head's matrix."""
        matrices = (self.heads, self.state_size, self.head_dim)
        return StateSpec("conv", (self.kernel - 1, _size(self.channels))), StateSpec("ssm", matrices, is_fp32=True)

    @property
    def counts(self) -> tuple[int, ...]:
        """What ranks share."""
        return self.heads, self.groups

    def of(self, share: Share) -> MambaSpec:
        return replace(self, heads=len(share.of(self.heads)), groups=len(share.of(self.groups)), share=share)

    def weights(self, hidden_size: int) -> Iterator[RecurrentWeight]:
        """Yield the weights by their paths in the layer's part."""
        yield _by_row("in.weight", self.projected, hidden_size)
        yield _by_row("taps.weight", self.channels, 1, self.kernel)
        for name in ("dt_bias", "a_log", "d"):
            yield _by_row(name, ((self.heads, 1),))
        if self.norm != "none":
            yield _by_row("norm.weight", (self.values,))
        yield _by_column("out.weight", hidden_size, (self.values,))
        if self.has_bias:
            yield _by_row("in.bias", self.projected)
        if self.has_output_bias:
            yield RecurrentWeight("out.bias", (hidden_size,))
        if self.has_conv_bias:
            yield _by_row("taps.bias", self.channels)


RecurrentSpec = ConvSpec | DeltaNetSpec | MambaSpec


@dataclass(frozen=True)
class ParallelMixer:
    """A recurrent mixer next to a layer's attention: both read the same input, and their outputs are summed.

    factors, attention_factors: of the (input, output) of the mixer, and of attention.
    """

    mixer: RecurrentSpec
    factors: tuple[float, float] = (1.0, 1.0)
    attention_factors: tuple[float, float] = (1.0, 1.0)
