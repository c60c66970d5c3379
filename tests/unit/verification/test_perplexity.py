"""Losses and distances of next-token distributions, beside torch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from trtkit.llm.execution.execution import CallCounts
from trtkit.verification.perplexity import mean_loss, read_window

if TYPE_CHECKING:
    from trtkit.llm.execution import Call


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [40, 50] of two models."""
    torch.manual_seed(0)
    base = 3 * torch.randn(40, 50)
    return base + 0.5 * torch.randn(40, 50), base


class Fixed:
    """A decoder whose logits [S, V] are known. longest: the most tokens that a call brought."""

    def __init__(self, logits: torch.Tensor, max_prefill_length: int = 512) -> None:
        self.logits, self.max_prefill_length, self.longest = logits, max_prefill_length, 0
        self.calls = CallCounts()

    def forward(self, call: Call) -> torch.Tensor:
        start, count = int(call.starts[0]), call.ids.shape[1]
        self.longest = max(self.longest, count)
        return self.logits[None, start : start + count]


def test_the_distance_is_torchs_divergence() -> None:
    logits, base = drawn()
    own, others = (torch.log_softmax(one, -1) for one in (logits, base))
    expected = torch.nn.functional.kl_div(own, others, log_target=True, reduction="batchmean")
    models: list[Any] = [Fixed(logits, 16), Fixed(base, 7)]
    read = read_window(models, list(range(3, 43)))
    assert read.divergence == pytest.approx(float(expected), rel=1e-4)
    assert read.same == sum(int(a.argmax() == b.argmax()) for a, b in zip(logits, base, strict=True)) / 40 < 1
    assert read.losses[1] == pytest.approx(mean_loss(base, list(range(3, 43))))


def test_a_window_is_read_without_holding_all_its_logits() -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(300, 500), torch.randint(500, (300,)).tolist()
    model: Any = Fixed(logits)
    read = read_window([model], ids)
    assert read.losses == [pytest.approx(mean_loss(logits, ids))]
    assert (read.divergence, read.same, model.longest) == (0.0, 1.0, 64)


def test_the_loss_is_torchs_cross_entropy() -> None:
    logits, _ = drawn()
    ids = list(range(3, 43))
    expected = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    assert mean_loss(logits, ids) == pytest.approx(float(expected), rel=1e-5)
