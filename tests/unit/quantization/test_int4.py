"""Rounding to four bits, beside ModelOpt's; AWQ and GPTQ lose less than rounding."""

from __future__ import annotations

import pytest
import torch
from modelopt.torch.export.quant_utils import pack_int4_in_uint8

from trtkit.quantization.int4 import Rounding, awq, awq_factors, gptq, nearest
from trtkit.quantized_matrix import QuantizedMatrix, unpack


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight [48, 128] and the moments of inputs, some of whose channels are large and all of which mix."""
    torch.manual_seed(seed)
    inputs = torch.randn(512, 128) @ (torch.eye(128) + 0.3 * torch.randn(128, 128) / 8)
    inputs[:, ::17] *= 12
    return torch.randn(48, 128), inputs.T @ inputs


def loss(weight: torch.Tensor, matrix: QuantizedMatrix, moments: torch.Tensor) -> float:
    change = weight - torch.from_numpy(matrix.weights())
    return float(((change @ moments) * change).sum())


@pytest.mark.parametrize("block", [32, 64, 128])
def test_rounding_gives_the_codes_that_modelopt_exports(block: int) -> None:
    weight, _ = drawn()
    matrix = nearest(weight, Rounding(block))
    theirs = pack_int4_in_uint8(weight, torch.from_numpy(matrix.scales), block).numpy()
    codes = unpack(matrix.codes)
    assert (theirs == (codes[0::2] | codes[1::2] << 4)).all()


@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("zero_points", [False, True])
def test_no_weight_moves_by_more_than_half_a_level(block: int, zero_points: bool) -> None:
    weight, _ = drawn()
    matrix = nearest(weight, Rounding(block, zero_points))
    half = torch.from_numpy(matrix.scales).repeat_interleave(block, 1) / 2
    assert ((weight - torch.from_numpy(matrix.weights())).abs() <= half * (1 + 1e-4)).all()


def test_zero_points_keep_weights_on_sixteen_levels_as_they_are() -> None:
    torch.manual_seed(0)
    levels = torch.randint(0, 16, (8, 64)).float()
    levels[:, ::32], levels[:, 1::32] = 0, 15  # each block of 32 has its first and last level
    weight = levels * 0.013 - 0.08
    torch.testing.assert_close(torch.from_numpy(nearest(weight, Rounding(32, True)).weights()), weight)


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_awq_and_gptq_lose_less_than_rounding(seed: int, zero_points: bool) -> None:
    weight, moments = drawn(seed)
    rounding = Rounding(32, zero_points)
    plain = loss(weight, nearest(weight, rounding), moments)
    factors = awq_factors([weight], moments, rounding)
    assert loss(weight, awq(weight, moments, rounding, factors), moments) < 0.8 * plain
    assert loss(weight, gptq(weight, moments, rounding), moments) < 0.8 * plain


@pytest.mark.parametrize("zero_points", [False, True])
def test_cutting_ranges_loses_less_and_never_more_in_any_row(zero_points: bool) -> None:
    weight, moments = drawn()
    squares = torch.diag(moments.diagonal())
    rounding = Rounding(32, zero_points)
    cut, whole = awq(weight, squares, rounding, torch.ones(128)), nearest(weight, rounding)
    rows = [
        ((weight - torch.from_numpy(matrix.weights())).square() * squares.diagonal()).sum(1) for matrix in (cut, whole)
    ]
    assert (rows[0] <= rows[1] * (1 + 1e-5)).all()
    assert rows[0].sum() < 0.9 * rows[1].sum()


def test_gptq_of_inputs_that_do_not_mix_is_rounding() -> None:
    weight, moments = drawn()
    squares, rounding = torch.diag(moments.diagonal()), Rounding(32)
    rounded = awq(weight, squares, rounding, torch.ones(128))
    torch.testing.assert_close(
        torch.from_numpy(gptq(weight, squares, rounding).weights()), torch.from_numpy(rounded.weights())
    )


def test_inputs_of_few_tokens_can_be_inverted() -> None:
    weight, _ = drawn()
    few = torch.randn(3, 128)
    assert torch.isfinite(torch.from_numpy(gptq(weight, few.T @ few, Rounding(32)).weights())).all()
