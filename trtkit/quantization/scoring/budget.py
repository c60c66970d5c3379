"""Budgets: which layers stay as they are, or in more bits, so that size or loss holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trtkit.errors import QuantizeError
from trtkit.quantization.llm.choice import inputs_of
from trtkit.quantization.scoring.report import ORIGINAL_BITS, Choosable, LayerLoss
from trtkit.quantization_methods import METHODS, weight_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(bits|mib|nats)", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """What quantization may cost.

    bits: mean bits of a linear layer's weight; mib: of all linear layers together; nats: the loss of the whole.
    """

    value: float
    unit: Literal["bits", "mib", "nats"]


def parse_budget(text: str) -> Budget:
    """Return a budget such as `5.5bits`, `80MiB` or `0.02nats`. Raises QuantizeError."""
    match = _BUDGET.fullmatch(text.strip())
    if match is None:
        fix = "write it as `5.5bits` (of a weight), `80MiB` (of all linear layers) or `0.02nats` (of loss)"
        raise QuantizeError(f"`{text}` is not a budget", "--budget", fix)
    unit: Any = match[2].lower()
    return Budget(float(match[1]), unit)


@dataclass(frozen=True)
class Bits:
    """How many bits weights take with their share of scales and offsets. fallback: method of layers that are left."""

    block: int
    has_zero_points: bool = False
    fallback: str | None = None

    def __call__(self, method: str) -> float:
        """Return the bits of a weight of a method."""
        row = METHODS[method]
        if row.takes_block:
            return weight_bits(row.format, self.block, has_offsets=self.has_zero_points)
        return weight_bits(row.format)

    def left(self) -> float:
        """Return the bits of a weight that a budget leaves."""
        return ORIGINAL_BITS if self.fallback is None else self(self.fallback)


def keep_for(
    budget: Budget, losses: Sequence[LayerLoss], loss_without: Callable[[Sequence[str]], float]
) -> tuple[list[str], float]:
    """Return the layers to leave as they are so that a budget holds, and the loss of quantizing the rest.

    Layers are left by what they lose for what they save. loss_without: measures the model with all but some layers
    quantized. Raises QuantizeError where no choice holds it.
    """
    ranked = by_loss_saved(losses)
    if budget.unit == "nats":
        count = _fewest(len(ranked), lambda kept: loss_without(_names(ranked[:kept])) <= budget.value)
        return _names(ranked[:count]), loss_without(_names(ranked[:count]))
    allowed = budget.value * _total(losses) if budget.unit == "bits" else budget.value * 2**23
    used, count = sum(row.bits * row.weights for row in losses), 0
    if used > allowed:
        least = used / _total(losses) if budget.unit == "bits" else used / 2**23
        fix = f"raise it to {least:.2f}{budget.unit}, or use a lower-bit method"
        raise QuantizeError(
            f"with every layer quantized, the model is still above {budget.value:g}{budget.unit}",
            "--budget",
            fix,
        )
    for group in ranked:
        used += sum((row.left_bits - row.bits) * row.weights for row in group)
        if used > allowed:
            break
        count += 1
    return _names(ranked[:count]), loss_without(_names(ranked[:count]))


def loss_by_size(losses: Sequence[LayerLoss], loss_without: Callable[[Sequence[str]], float]) -> list[Choosable]:
    """Return sizes and losses with none, an eighth, a quarter, half and three quarters of the layers left as they are.

    The layers are those that budgets leave first; the smallest size comes first.
    """
    ranked, points = by_loss_saved(losses), []
    for count in sorted({0, *(len(ranked) * share // 8 for share in (1, 2, 4, 6))}):
        left = _names(ranked[:count])
        bits = sum((row.left_bits if row.layer in left else row.bits) * row.weights for row in losses)
        points.append(Choosable(len(left), bits / 2**23, loss_without(left)))
    return points


def by_loss_saved(losses: Sequence[LayerLoss]) -> list[list[LayerLoss]]:
    """Return layers by what they lose for what they save, the largest first; those that share inputs together.

    Engines fuse such layers, and ModelOpt's checkpoints have them in one format.
    """
    groups: dict[str, list[LayerLoss]] = {}
    for row in losses:
        groups.setdefault(inputs_of(row.layer), []).append(row)
    return sorted(groups.values(), key=lambda group: -sum(row.loss for row in group) / _saved(group))


def _saved(rows: Sequence[LayerLoss]) -> float:
    """Return the bits that quantizing saves; the weights, where it saves none."""
    return sum(row.weights * max(row.left_bits - row.bits, 1e-9) for row in rows)


def _names(groups: Sequence[Sequence[LayerLoss]]) -> list[str]:
    return [row.layer for group in groups for row in group]


def _fewest(count: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number from 0 to `count` that holds, which all larger ones do; `count` always does."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _total(losses: Sequence[LayerLoss]) -> int:
    return sum(row.weights for row in losses)
