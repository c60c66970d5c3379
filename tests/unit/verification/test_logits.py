"""A greedy choice is compared if the reference's two best logits are clearly apart: by one margin for all models."""

from __future__ import annotations

import pytest
import torch

from trtkit.verification.compare import limits_of
from trtkit.verification.logits import ChoicesCompared

TOLERANCE = 0.02


def logits_with_gap(gap: float) -> torch.Tensor:
    """Return one position of 100 logits whose two best are `gap` times the RMS of all apart."""
    logits = torch.randn(100, generator=torch.Generator().manual_seed(0)).clamp(max=1.0)
    logits[[7, 42]] = 3.0
    logits[42] -= gap * logits.square().mean().sqrt()
    return logits[None]


@pytest.mark.parametrize(("share", "agreement"), [(0.2, 1.0), (0.39, 1.0), (0.5, 0.0), (0.9, 0.0), (2.0, 0.0)])
def test_another_choice_counts_if_it_is_clear(share: float, agreement: float) -> None:
    """Between 0.4 and 1 times the tolerance, models that take images were once not compared."""
    theirs = logits_with_gap(share * TOLERANCE)
    ours = theirs.clone()
    ours[0, [7, 42]] = theirs[0, [42, 7]]
    choices = ChoicesCompared(limits_of(TOLERANCE))
    choices.add(ours, theirs)
    assert choices.agreement == agreement


def test_the_share_is_of_all_clear_positions() -> None:
    choices = ChoicesCompared(limits_of(TOLERANCE))
    for offset, gap in ((0, 1.0), (1, 1.0), (0, 0.0), (1, 0.0), (0, 1.0)):
        theirs = logits_with_gap(gap)
        choices.add(theirs.roll(offset, -1), theirs)
    assert choices.agreement == 2 / 3
