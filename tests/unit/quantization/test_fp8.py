"""Scales of FP8 rows: they hold every weight, lose least, and find the lattice that weights stand on."""

from __future__ import annotations

import pytest
import torch

from trtkit.quantization.llm.modelopt import least_error_scales


def error_of(weight: torch.Tensor, scale: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    rounded = (weight / scale).to(torch.float8_e4m3fn).float() * scale
    return ((rounded - weight).square() * squares).sum(1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scales_hold_the_largest_weight_and_lose_less_than_its_own(seed: int) -> None:
    torch.manual_seed(seed)
    weight, squares = torch.randn(64, 96) * torch.rand(64, 1), torch.rand(96) ** 4
    scales, plain = least_error_scales(weight, squares), weight.abs().amax(1, keepdim=True) / 448
    assert bool((scales >= plain).all())
    assert bool((scales < 2 * plain).all())
    ours, theirs = error_of(weight, scales, squares), error_of(weight, plain, squares)
    assert bool((ours <= theirs).all())
    assert float(ours.sum()) < 0.85 * float(theirs.sum())


def test_weights_that_the_type_holds_stay() -> None:
    torch.manual_seed(0)
    codes = (40 * torch.randn(32, 64)).to(torch.float8_e4m3fn).float()
    codes[:, 0] = 448
    scales = least_error_scales(codes * 0.0125, torch.ones(64))
    torch.testing.assert_close(scales, torch.full((32, 1), 0.0125))


def test_a_row_of_zeros_has_a_scale() -> None:
    scales = least_error_scales(torch.zeros(2, 8), torch.ones(8))
    assert bool((scales > 0).all())
