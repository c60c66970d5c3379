"""Gemma 3n's and 4's vectors of each layer's own, and several hidden states, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """Yield the weights outside of layers but for norms."""
        yield "per_layer_table.weight", (self.vocab_size, self.layers * self.size)
        yield "per_layer_projection.weight", (self.layers * self.size, hidden_size)

    def inside(self, hidden_size: int) -> Iterator[Part]:
        """Yield the weights of one layer but for norms."""
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
        """Yield the weights outside of layers."""
        for name in ("in", "out"):
            for index in range(self.count - 1):
                yield f"streams.{name}.{index}.weight", (hidden_size, hidden_size)

    def inside(self, hidden_size: int) -> Iterator[Part]:
        """Yield the weights of one layer but for norms."""
        yield "streams.router.weight", (self.count, hidden_size)
        yield "streams.predict.weight", (self.count**2, self.count)
        yield "streams.correct.weight", (self.count, self.count)
        yield "streams.scale", (hidden_size,)
        yield "laurel.left.weight", (self.laurel_rank, hidden_size)
        yield "laurel.right.weight", (hidden_size, self.laurel_rank)
