"""Products with quantized matrices, which the fast way reads as codes: against torch in fp64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.reference.conftest import assert_same
from trtkit.quantized_matrix import pack
from trtkit.reference import Executor, Options
from trtkit.reference.layers import product

TYPES = {torch.float32: "FLOAT", torch.float16: "HALF", torch.bfloat16: "BF16"}
DTYPES = list(TYPES)
ROWS = [(1, 1), (3, 1), (2, 30), (0, 1), (1, 0)]


def int8_matrix(net: Any, random: Any, dtype: torch.dtype, shape: tuple[int, int]) -> tuple[Any, torch.Tensor]:
    """Return a dequantized matrix [1, N, K] with a scale for each row, and its exact values."""
    codes = (random(*shape) * 40).round().clamp(-128, 127).to(torch.int8)
    scales = (random(shape[0]).abs() / 64 + 2**-9).to(dtype)
    one = net.constant(codes[None].numpy())
    layer = net.network.add_dequantize(one, constant(net, scales), getattr(net.trt.DataType, TYPES[dtype]))
    layer.axis = 1
    return layer.get_output(0), codes.double() * scales.double()[:, None]


def int4_matrix(
    net: Any, random: Any, dtype: torch.dtype, shape: tuple[int, int], block: int
) -> tuple[Any, torch.Tensor]:
    """Return a dequantized matrix [1, N, K] with a scale for each block, and its exact values."""
    codes = (random(*shape) * 3).round().clamp(-8, 7).to(torch.int8)
    scales = (random(shape[0], shape[1] // block).abs() / 8 + 2**-9).to(dtype)
    one = net.opaque(pack(codes.numpy()).reshape(-1), "INT4", (1, *shape))
    layer = net.network.add_dequantize(one, constant(net, scales[None]), getattr(net.trt.DataType, TYPES[dtype]))
    return layer.get_output(0), codes.double() * scales.double().repeat_interleave(block, 1)


def constant(net: Any, value: torch.Tensor) -> Any:
    """Return a constant of any of the types."""
    held = value.contiguous()
    net.held.append(held)
    weights = net.trt.Weights(getattr(net.trt.DataType, TYPES[held.dtype]), held.data_ptr(), held.numel())
    return net.network.add_constant(tuple(held.shape), weights).get_output(0)


def multiplied(net: Any, x: Any, matrix: Any) -> Any:
    kinds = net.trt.MatrixOperation
    return net.network.add_matrix_multiply(x, kinds.NONE, matrix, kinds.TRANSPOSE).get_output(0)


def both(net: Any, *outputs: Any) -> tuple[Executor, Executor]:
    """Return the executor that computes layer by layer, and the fast one."""
    plain = net.executor(*outputs)
    return plain, Executor(plain.layers, Options(is_fast=True))


def assert_rounded_once(got: torch.Tensor, x: torch.Tensor, matrix: torch.Tensor) -> None:
    """Assert that a product is the exact one but for a rounding of its type, and of sums in fp32."""
    assert got.dtype == x.dtype
    want, size = x.double() @ matrix.mT, x.double().abs() @ matrix.abs().mT
    largest = x.double().abs().amax(-1, keepdim=True) * matrix.abs().sum(-1) if x.numel() else size
    allowed = torch.finfo(got.dtype).eps * want.abs() + 2.0**-20 * torch.maximum(size, largest)
    assert got.shape == want.shape
    assert bool(((got.double() - want).abs() <= allowed).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(96, 64), (70, 130), (16, 1024)])
def test_int8_matrices_are_multiplied_as_codes(
    net: Any, random: Any, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    matrix, exact = int8_matrix(net, random, dtype, shape)
    _, fast = both(
        net, multiplied(net, net.given(torch.zeros(1, 1, shape[1], dtype=dtype), (-1, -1, shape[1])), matrix)
    )
    for rows in ROWS:
        x = random(*rows, shape[1], dtype=dtype)
        x[..., 3] *= 300  # an outlier, as language models have
        (got,) = fast.run({"input0": x}).values()
        has_kernel = dtype == torch.bfloat16 and shape[1] % 32 == 0
        rounded = has_kernel and rows[0] * rows[1] >= product.MANY_ROWS["int8"]
        assert_rounded_once(got, x, exact.to(dtype).double() if rounded else exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "block"), [((96, 64), 32), ((64, 256), 64), ((80, 256), 128), ((48, 96), 48)])
def test_int4_matrices_are_multiplied_as_codes_or_dequantized(
    net: Any, random: Any, dtype: torch.dtype, shape: tuple[int, int], block: int
) -> None:
    matrix, exact = int4_matrix(net, random, dtype, shape, block)
    x = net.given(torch.zeros(1, 1, shape[1], dtype=dtype), (-1, -1, shape[1]))
    plain, fast = both(net, multiplied(net, x, matrix))
    is_kernel = dtype == torch.bfloat16 and block != 48
    for rows in ROWS:
        feed = {"input0": random(*rows, shape[1], dtype=dtype)}
        (want,), (got,) = plain.run(feed).values(), fast.run(feed).values()
        if is_kernel and rows[0] * rows[1] < product.MANY_ROWS["int4"]:
            assert_rounded_once(got, feed["input0"], exact)
        else:
            assert_same(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [2.0**-30, 2.0**-4, 2.0**12])
def test_rows_of_any_size_keep_their_precision(net: Any, random: Any, dtype: torch.dtype, scale: float) -> None:
    if dtype == torch.float16:
        scale = max(scale, 2.0**-8)  # fp16 ends at 2^-24
    matrix, exact = int8_matrix(net, random, dtype, (64, 96))
    if scale > 1 and dtype == torch.float16:
        scale = 4.0
    _, fast = both(net, multiplied(net, net.given(torch.zeros(1, 4, 96, dtype=dtype)), matrix))
    x = random(1, 4, 96, dtype=dtype) * scale
    x[0, 1] = 0
    (got,) = fast.run({"input0": x}).values()
    assert_rounded_once(got, x, exact)
    assert bool((got[0, 1] == 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_has_no_finite_product(
    net: Any, random: Any, dtype: torch.dtype, value: float
) -> None:
    matrix, _ = int8_matrix(net, random, dtype, (64, 96))
    _, fast = both(net, multiplied(net, net.given(torch.zeros(1, 2, 96, dtype=dtype)), matrix))
    x = random(1, 2, 96, dtype=dtype)
    x[0, 0, 5] = value
    (got,) = fast.run({"input0": x}).values()
    assert not torch.isfinite(got[0, 0]).any()
    assert torch.isfinite(got[0, 1]).all()


@pytest.mark.parametrize("is_quantized", [True, False])
def test_products_of_one_tensor_are_joined_and_keep_their_outputs(net: Any, random: Any, is_quantized: bool) -> None:
    x = random(1, 3, 128, dtype=torch.float16)
    given, shapes = net.given(x), [(128, 128), (64, 128), (64, 128)]
    if is_quantized:
        pairs = [int8_matrix(net, random, torch.float16, shape) for shape in shapes]
    else:
        numbers = [random(*shape, dtype=torch.float16) for shape in shapes]
        pairs = [(constant(net, values[None]), values.double()) for values in numbers]
    products = [multiplied(net, given, matrix) for matrix, _ in pairs]
    plain, fast = both(net, *products)
    for (name, got), (_, exact) in zip(fast.run({"input0": x}).items(), pairs, strict=True):
        assert name in plain.output_names
        assert_rounded_once(got, x, exact)
    assert len(fast.layer_seconds({"input0": x})) == 1
    assert len(plain.layer_seconds({"input0": x})) == 3


def test_dequantized_matrices_are_still_seen_between_layers(net: Any, random: Any) -> None:
    matrix, exact = int8_matrix(net, random, torch.float32, (64, 96))
    name = matrix.name
    _, fast = both(net, multiplied(net, net.given(random(1, 2, 96)), matrix))
    kept = fast.run(net.feed, keep=[name])[name]
    assert torch.equal(kept[0], exact.float())


def test_a_matrix_that_something_else_reads_is_dequantized_for_it(net: Any, random: Any) -> None:
    matrix, exact = int8_matrix(net, random, torch.float32, (64, 96))
    x = random(1, 2, 96)
    y = multiplied(net, net.given(x), matrix)
    rows = net.network.add_gather(matrix, net.constant(np.array([1], np.int64)), 1).get_output(0)
    _, fast = both(net, y, rows)
    got, row = fast.run({"input0": x}).values()
    assert_rounded_once(got, x, exact)
    assert torch.equal(row[0], exact[1:2].float())
