from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trtkit.reference.layers import product
from trtkit.reference.layers.product import FEW_ROWS

ROUNDING = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def _product(net: Any, a: Any, b: Any, *, transposed: bool) -> Any:
    kinds = net.trt.MatrixOperation
    layer = net.network.add_matrix_multiply(a, kinds.NONE, b, kinds.TRANSPOSE if transposed else kinds.NONE)
    return layer.get_output(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 33), (7, 1, 129), (2, 3, 7, 65), (1, FEW_ROWS + 1, 96), (3, 0, 8)])
def test_one_matrix_multiplies_every_row(
    net: Any, random: Any, shape: tuple[int, ...], transposed: bool, dtype: torch.dtype
) -> None:
    a, weight = random(*shape, dtype=dtype), random(*[1] * (len(shape) - 2), 19, shape[-1], dtype=dtype)
    b = weight if transposed else weight.mT.contiguous()
    got = net.run(_product(net, net.given(a), net.given(b), transposed=transposed))
    want = a.double() @ weight.double().mT
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert_close(got.double(), want, rtol=ROUNDING[dtype], atol=ROUNDING[dtype] * 4)


@pytest.mark.parametrize("shapes", [((2, 1, 8), (2, 5, 8)), ((1, 4, 8), (3, 5, 8)), ((4, 2, 1, 8), (1, 2, 5, 8))])
def test_collections_of_matrices_are_multiplied_one_by_one(
    net: Any, random: Any, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    a, b = (random(*shape, dtype=torch.float16) for shape in shapes)
    got = net.run(_product(net, net.given(a), net.given(b), transposed=True))
    assert_close(got.double(), a.double() @ b.double().mT, rtol=2**-10, atol=2**-10)


@pytest.mark.parametrize("rows", [1, 2, FEW_ROWS, FEW_ROWS + 1])
def test_fp16_sums_leave_its_range_on_the_way_but_not_at_the_end(net: Any, rows: int) -> None:
    a = torch.full((rows, 600), 200.0, dtype=torch.float16)
    weight = torch.full((3, 600), 200.0, dtype=torch.float16)
    weight[1, 300:] = -200.0
    weight[2] = torch.tensor([1.0, -1.0] * 300)
    got = net.run(_product(net, net.given(a), net.given(weight), transposed=True))
    assert torch.equal(got, torch.tensor([[torch.inf, 0.0, 0.0]] * rows, dtype=torch.float16))


@pytest.mark.parametrize("torch_sums_in_fp32", [True, False])
def test_fp16_gives_the_same_however_torch_sums_it(
    net: Any, random: Any, monkeypatch: Any, torch_sums_in_fp32: bool
) -> None:
    monkeypatch.setattr(product, "_torch_sums_in_fp32", lambda: torch_sums_in_fp32)
    a, weight = random(3, 2048, dtype=torch.float16), random(40, 2048, dtype=torch.float16)
    got = net.run(_product(net, net.given(a), net.constant(weight.numpy()), transposed=True))
    want = (a.double() @ weight.double().T).half()
    assert float((got.double() - want.double()).norm() / want.double().norm()) < 2**-11
    assert bool(np.isfinite(got.numpy()).all())
