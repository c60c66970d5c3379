"""Rounding by block is that of the reference executor's DynamicQuantize, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
import torch

from tests.unit.network.ops.evaluate import evaluate
from trtkit.dtypes import DTYPES, FP8, FP32
from trtkit.network.ops.quantize import dequantize, dynamic_quantize, scale_constant
from trtkit.quantization.scoring.emulation import round_blocks

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


def written(x: Tensor, kind: str, outer: float) -> Tensor:
    """Quantize and dequantize as networks do."""
    if kind == "mxfp8":
        return dequantize(*dynamic_quantize(x, FP8), FP32)
    scale = scale_constant(x.graph, outer, "scale", FP32)
    codes, scales = dynamic_quantize(x, DTYPES["fp4"], scale)
    return dequantize(codes, dequantize(scales, scale, FP32), FP32)


@pytest.mark.parametrize("size", [1e-30, 1.0, 3e4])
@pytest.mark.parametrize("kind", ["fp4", "mxfp8"])
def test_blocks_are_rounded_as_networks_round_them(kind: Literal["fp4", "mxfp8"], size: float) -> None:
    x = torch.randn(2, 7, 96, generator=torch.Generator().manual_seed(0)) * size
    x[0, 0] = 0
    x[1, 2, :48] = torch.linspace(-6, 6, 48) * size  # ties between two values
    x[1, 3, 5] = 1000 * size
    outer = float(x.abs().max()) / (6 * 448)
    got = round_blocks(x, kind, outer)
    assert torch.equal(got, evaluate(lambda t: written(t, kind, outer), x))
    assert not torch.equal(got, x)
