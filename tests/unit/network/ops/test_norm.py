from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.unit.network.ops.evaluate import assert_close, evaluate, random
from trtkit.network.ops.norm import layer_norm, rms_norm

shapes = pytest.mark.parametrize("shape", [(1, 1, 64), (2, 7, 96)])  # 7 divides no tile
dtypes = pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])


@shapes
@dtypes
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_matches_torch(shape: tuple[int, ...], dtype: str, offset: float) -> None:
    x, weight = random(*shape, dtype=dtype) * 3, random(shape[-1], dtype=dtype)
    got = evaluate(lambda t: rms_norm(t, t.graph.constant(weight), 1e-3, offset), x)
    want = F.rms_norm(x.double(), shape[-1:], weight.double() + offset, 1e-3)
    assert_close(got, want, dtype)


@shapes
@dtypes
def test_layer_norm_matches_torch(shape: tuple[int, ...], dtype: str) -> None:
    x, weight, bias = random(*shape, dtype=dtype) + 2, random(shape[-1], dtype=dtype), random(shape[-1], dtype=dtype)
    got = evaluate(lambda t: layer_norm(t, t.graph.constant(weight), t.graph.constant(bias), 1e-3), x)
    assert_close(got, F.layer_norm(x.double(), shape[-1:], weight.double(), bias.double(), 1e-3), dtype)


def test_layer_norm_with_a_row_per_head_norms_each_head_by_its_own() -> None:
    x, weight = random(2, 5, 3, 8), random(3, 8)
    got = evaluate(lambda t: layer_norm(t, t.graph.constant(weight), None, 1e-5), x)
    assert_close(got, F.layer_norm(x, (8,), eps=1e-5) * weight)


def test_norms_without_weights_only_normalize() -> None:
    x = random(2, 3, 16)
    assert_close(evaluate(lambda t: rms_norm(t, None, 1e-5), x), F.rms_norm(x, (16,), eps=1e-5))
    assert_close(evaluate(lambda t: layer_norm(t, None, None, 1e-5), x), F.layer_norm(x, (16,), eps=1e-5))


def test_rms_norm_of_large_fp16_values_does_not_overflow() -> None:
    x = torch.full((1, 1, 32), 30000.0, dtype=torch.float16)
    assert torch.equal(evaluate(lambda t: rms_norm(t, None, 1e-6), x), torch.ones_like(x))
