"""Losses and distances of next-token distributions, beside torch's own."""

from __future__ import annotations

import pytest
import torch

from trtkit.verify.perplexity import distance, mean_loss


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [40, 50] of two models."""
    torch.manual_seed(0)
    base = 3 * torch.randn(40, 50)
    return base + 0.5 * torch.randn(40, 50), base


def test_the_distance_is_torchs_divergence() -> None:
    logits, base = drawn()
    own, others = (torch.log_softmax(one, -1) for one in (logits, base))
    expected = torch.nn.functional.kl_div(own, others, log_target=True, reduction="batchmean")
    divergence, same = distance(logits, base)
    assert divergence == pytest.approx(float(expected), rel=1e-4)
    assert same == sum(int(a.argmax() == b.argmax()) for a, b in zip(logits, base, strict=True)) / 40 < 1


def test_the_loss_is_torchs_cross_entropy() -> None:
    logits, _ = drawn()
    ids = list(range(3, 43))
    expected = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    assert mean_loss(logits, ids) == pytest.approx(float(expected), rel=1e-5)
