"""Budgets: parsed, held, and refused where nothing holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.errors import QuantizeError
from trtkit.quantization.scoring.mix import Budget, keep_for, parse_budget
from trtkit.quantization.scoring.report import LayerLoss

if TYPE_CHECKING:
    from collections.abc import Sequence

LOSSES = st.lists(st.floats(0, 1), min_size=1, max_size=12).map(
    lambda losses: [LayerLoss(f"layers.{i}", "int4_wo", loss, 1000 + i, 4.5) for i, loss in enumerate(losses)]
)


def whole(losses: Sequence[LayerLoss], kept: Sequence[str]) -> float:
    return sum(row.loss for row in losses if row.layer not in kept)


def bits(losses: Sequence[LayerLoss], kept: Sequence[str]) -> float:
    used = sum(row.weights * (16 if row.layer in kept else row.bits) for row in losses)
    return used / sum(row.weights for row in losses)


@given(LOSSES, st.floats(4.5, 16))
def test_a_budget_of_bits_is_held_and_used(losses: list[LayerLoss], value: float) -> None:
    kept, loss = keep_for(Budget(value, "bits"), losses, lambda names: whole(losses, names))
    assert bits(losses, kept) <= value * (1 + 1e-12)
    assert loss == whole(losses, kept)
    more, _ = keep_for(Budget(value + 1, "bits"), losses, lambda names: whole(losses, names))
    assert set(kept) <= set(more)


@given(LOSSES, st.floats(0, 3))
def test_a_budget_of_loss_is_held_by_as_few_layers_as_can_be(losses: list[LayerLoss], value: float) -> None:
    kept, loss = keep_for(Budget(value, "nats"), losses, lambda names: whole(losses, names))
    assert loss <= value
    assert not kept or whole(losses, kept[:-1]) > value


def test_layers_that_share_inputs_are_left_together() -> None:
    names = ["layers.0.attention.q", "layers.0.attention.k", "layers.0.attention.o", "layers.0.mlp.up"]
    losses = [LayerLoss(name, "fp8", loss, 100, 8) for name, loss in zip(names, (3.0, 0.0, 1.0, 1.2), strict=True)]
    kept, loss = keep_for(Budget(3, "nats"), losses, lambda left: whole(losses, left))
    assert kept == names[:2]
    assert loss == 2.2
    assert len(keep_for(Budget(2, "nats"), losses, lambda left: whole(losses, left))[0]) == 3


def test_a_budget_that_nothing_holds_is_refused() -> None:
    losses = [LayerLoss("layers.0", "int8_wo", 0.1, 1 << 20, 8)]
    for budget, least in ((Budget(4, "bits"), "8.00bits"), (Budget(0.5, "mib"), "1.00mib")):
        with pytest.raises(QuantizeError, match="with every layer quantized, the model is still above") as caught:
            keep_for(budget, losses, lambda _: 0.0)
        assert least in caught.value.fix


@pytest.mark.parametrize(
    ("text", "budget"),
    [("5.5bits", Budget(5.5, "bits")), ("80MiB", Budget(80, "mib")), ("0.02nats", Budget(0.02, "nats"))],
)
def test_budgets_have_units(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["5", "bits", "-1bits", "5GB", ""])
def test_budgets_without_a_unit_are_refused(text: str) -> None:
    with pytest.raises(QuantizeError, match="is not a budget"):
        parse_budget(text)
