"""Scores of layers as typed data, readable without torch."""

from dataclasses import dataclass

ORIGINAL_BITS = 16.0


@dataclass(frozen=True)
class LayerLoss:
    """Loss and size of one layer. loss: in nats, with only this layer quantized. weights: their number.

    bits: per weight if quantized.
    left_bits: per weight if left by a budget.
    """

    layer: str
    method: str
    loss: float
    weights: int
    bits: float
    left_bits: float = ORIGINAL_BITS


@dataclass(frozen=True)
class Choosable:
    """The result of leaving some layers unquantized. mib: of all linear layers. loss: of quantizing the others."""

    kept: int
    mib: float
    loss: float


@dataclass(frozen=True)
class Scores:
    """Each layer's loss, the largest first; the layers left by the budget, and the model's loss then.

    curve: results for other budgets. fallback: the method of the layers left; None if they stay unquantized.
    """

    layers: tuple[LayerLoss, ...]
    curve: tuple[Choosable, ...]
    kept: tuple[str, ...]
    loss: float
    fallback: str | None = None
