"""Weights of written parts against what torch rounds them to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trtkit.config.quantize import PartOptions
from trtkit.quantization.written import block_of, rounded


def weight(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("method", ["int8_wo", "int8"])
def test_int8_is_what_torch_quantizes_each_row_to(method: str) -> None:
    given = weight(7, 33)
    scales = given.abs().amax(1) / 127
    want = torch.fake_quantize_per_channel_affine(given, scales, torch.zeros(7, dtype=torch.int32), 0, -127, 127)
    made = rounded(given.numpy(), method, PartOptions())
    assert np.array_equal(made.weights(), want.numpy())
    assert (made.inputs is not None and made.inputs.is_per_token) == (method == "int8")


def test_fp8_is_what_torch_casts_each_row_to() -> None:
    given = weight(5, 48)
    scales = given.abs().amax(1, keepdim=True) / 448
    want = (given / scales).to(torch.float8_e4m3fn).float() * scales
    assert np.array_equal(rounded(given.numpy(), "fp8", PartOptions()).weights(), want.numpy())


def test_mxfp8_scales_blocks_of_32_by_powers_of_two() -> None:
    given = weight(6, 96) * torch.logspace(-6, 3, 6)[:, None]
    given[2, 32:64] = 0
    blocks = given.reshape(6, 3, 32)
    scales = torch.exp2(torch.ceil(torch.log2((blocks.abs().amax(-1, keepdim=True) / 448).clamp(min=1e-30))))
    want = ((blocks / scales).to(torch.float8_e4m3fn).float() * scales).reshape(6, 96)
    assert np.array_equal(rounded(given.numpy(), "mxfp8", PartOptions()).weights(), want.numpy())


@pytest.mark.parametrize(
    ("columns", "method", "asked", "block"),
    [
        (96, "int4_wo", None, 32),
        (256, "int4_wo", None, 128),
        (256, "int4_wo", 32, 32),
        (96, "int4_wo", 64, None),
        (3, "int4_wo", None, None),
        (96, "mxfp8", None, 32),
        (56, "mxfp8", None, None),
        (3, "int8_wo", None, 0),
    ],
)
def test_blocks_are_those_that_divide(columns: int, method: str, asked: int | None, block: int | None) -> None:
    options = PartOptions.model_validate({"block": asked})
    assert block_of(columns, method, options) == block
    if block and method == "int4_wo":
        assert rounded(weight(4, columns).numpy(), method, options).block == block


def test_a_row_of_zeros_stays_zero() -> None:
    for method in ("int8_wo", "int4_wo", "fp8", "mxfp8"):
        assert not rounded(np.zeros((3, 32), np.float32), method, PartOptions()).weights().any(), method
