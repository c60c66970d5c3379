"""What quantizing each layer costs, as typed data; torch is not needed to read it."""

from dataclasses import dataclass

ORIGINAL_BITS = 16.0


@dataclass(frozen=True)
class LayerLoss:
    """loss: in nats, with this layer alone quantized. weights: how many it has. bits: of one when quantized;
    left_bits: when a budget leaves it.
    """

    layer: str
    method: str
    loss: float
    weights: int
    bits: float
    left_bits: float = ORIGINAL_BITS


@dataclass(frozen=True)
class Choosable:
    """What leaving some layers as they are gives. mib: of all linear layers; loss: of quantizing the others."""

    kept: int
    mib: float
    loss: float


@dataclass(frozen=True)
class Scores:
    """Each layer's loss, the largest first; the layers that a budget leaves, and the loss of the model then.

    curve: what other budgets would give. fallback: the method of layers that are left; None if they stay.
    """

    layers: tuple[LayerLoss, ...]
    curve: tuple[Choosable, ...]
    kept: tuple[str, ...]
    loss: float
    fallback: str | None = None
