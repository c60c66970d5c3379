"""Learned positions of a square, stretched to an image's patches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from trtkit.inputs.vision_language import patch_positions, position_taps


@pytest.mark.parametrize("side", [1, 5, 48])
@pytest.mark.parametrize(
    ("size", "merge"), [((2, 2), 2), ((6, 10), 2), ((3, 9), 3), ((1, 4), 1), ((50, 2), 2)], ids=str
)
def test_positions_are_interpolated_as_transformers_does(size: tuple[int, int], merge: int, side: int) -> None:
    """What a table of `side` x `side` vectors gives each patch, whatever the taps are called."""
    taps = position_taps(patch_positions(*size, merge), size, side)
    grid = torch.tensor([[1, *size]])
    indices, weights = get_vision_interpolation_indices_and_weights(grid, side, "bilinear", True, merge)
    table = torch.randn(side**2, 3, generator=torch.Generator().manual_seed(0))
    want = (table[indices] * weights[..., None]).sum(1).numpy()
    got = (table.numpy()[taps["taps"]] * taps["tap_weights"][..., None]).sum(2).reshape(-1, 3)
    assert np.abs(got - want).max() <= 2e-5
