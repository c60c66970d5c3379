from __future__ import annotations

import numpy as np
import pytest
import torch

from trtkit.dtypes import BF16
from trtkit.network.host_array import host_array


def _bf16(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(host_array(array, BF16).owner.view(np.int16)).view(torch.bfloat16)


def test_fp32_becomes_bf16_as_torch_rounds_it() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    limits = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3.4e38, 1e-45, 1.00390625], np.float32)
    values = np.concatenate([bits.view(np.float32), limits])
    assert torch.equal(_bf16(values).nan_to_num(7.0), torch.from_numpy(values).bfloat16().nan_to_num(7.0))


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5)])
def test_a_conversion_keeps_the_shape_and_leaves_the_array(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 1.5, np.float32)
    converted = host_array(array, BF16)
    assert converted.shape == converted.owner.shape == shape
    assert bool((_bf16(array) == 1.5).all())
    assert bool((array == 1.5).all())


def test_a_transposed_array_is_converted_in_its_own_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert _bf16(array).tolist() == array.tolist()
