"""Layers in fp8 by blocks of rows and columns: what transformers dequantizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from trtkit.errors import TrtkitError
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.quantized.read import read_quantized

ASKED = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 64]}
CODES = torch.randn(96, 128, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
SCALES = torch.rand(3, 2, generator=torch.Generator().manual_seed(1)) + 0.01


def read(asked: dict[str, Any], scales: Any, codes: torch.Tensor = CODES, **more: Any) -> QuantizedMatrix:
    array = codes.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    found = {"a.weight": array, "a.weight_scale_inv": np.asarray(scales, np.float32)}
    found |= {f"a.{name}": value for name, value in more.items()}
    stored = {name: StoredArray(value.shape, lambda value=value: value) for name, value in found.items()}
    matrix = read_quantized(Path("model"), {"quantization_config": asked}, stored).stored["a.weight"].read()
    assert isinstance(matrix, QuantizedMatrix)
    return matrix


def dequantized(scales: torch.Tensor, codes: torch.Tensor = CODES) -> Any:
    return Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32).numpy()


def test_weights_are_what_transformers_dequantizes() -> None:
    matrix = read(ASKED, SCALES)
    np.testing.assert_array_equal(matrix.weights(), dequantized(SCALES))
    assert (matrix.format, matrix.block, matrix.inputs) == ("fp8", 64, None)
    one = read(ASKED | {"weight_block_size": None}, SCALES[0, 0])
    np.testing.assert_array_equal(one.weights(), dequantized(SCALES[:1, :1]))
    assert one.scales.shape == ()


def test_rows_beyond_whole_blocks_share_the_last_scale() -> None:
    """DeepSeek-V3 has a layer of 576 rows in blocks of 128."""
    got = read(ASKED, SCALES, CODES[:70]).weights()
    np.testing.assert_array_equal(got, dequantized(SCALES)[:70])


def test_a_static_scale_of_inputs_is_kept() -> None:
    matrix = read(ASKED | {"activation_scheme": "static"}, SCALES, activation_scale=np.array(0.25, np.float32))
    assert matrix.inputs == QuantizedInputs("fp8", 0.25)


@pytest.mark.parametrize(
    ("scales", "codes", "message"),
    [
        (SCALES[:2], CODES, "a: scales of shape [2, 2] do not belong to rows or blocks of 96 rows and 128 columns"),
        (SCALES, CODES[:, :96], "a: scales of shape [3, 2] do not belong to rows or blocks of 96 rows and 96 columns"),
        (SCALES * torch.inf, CODES, "a: scales are NaN or infinite"),
    ],
)
def test_damaged_layers_are_named(scales: torch.Tensor, codes: torch.Tensor, message: str) -> None:
    with pytest.raises(TrtkitError) as caught:
        read(ASKED, scales, codes.contiguous())
    assert message in str(caught.value)
