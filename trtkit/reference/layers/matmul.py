"""Matrix multiplication, einsum and constants."""

from __future__ import annotations

from functools import cache

import torch

from trtkit.reference.layer import Layer, Lowered, Op, Tensor

FEW_ROWS = 12
"""Rows up to which torch's own fp16 product on CPUs is faster than one in fp32 on converted matrices; measured."""


def matrix_multiply(layer: Layer) -> Op:
    """Multiply collections of matrices or vectors, transposed where the layer says so."""
    left, right = layer.option("op0"), layer.option("op1")
    dtype = layer.input_dtype()
    multiply = torch.matmul if layer.precision.accumulation(dtype) == dtype else _summed_in_fp32

    def run(a: Tensor, b: Tensor) -> Tensor:
        a = a.mT if left == "TRANSPOSE" else a.unsqueeze(-2) if left == "VECTOR" else a
        b = b.mT if right == "TRANSPOSE" else b.unsqueeze(-1) if right == "VECTOR" else b
        y = multiply(a, _as_one_matrix(b) if 2 < b.dim() <= a.dim() else b)
        y = y.squeeze(-1) if right == "VECTOR" else y
        return y.squeeze(-2 if right != "VECTOR" else -1) if left == "VECTOR" else y

    return run


def _as_one_matrix(b: Tensor) -> Tensor:
    """Return a collection of one matrix as that matrix, by which torch multiplies all rows at once, much faster."""
    leading = b.shape[:-2]
    return b.squeeze(tuple(range(len(leading)))) if leading.numel() == 1 else b


def _summed_in_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Multiply fp16 matrices; sums in fp32, the result rounded to fp16.

    torch does so itself for few rows times a transposed matrix, without converting it: how a model writes one token.
    """
    is_few = b.dim() == 2 and b.stride(0) == 1 and a.numel() <= FEW_ROWS * a.shape[-1]
    if is_few and _torch_sums_in_fp32():
        return torch.matmul(a, b)
    return torch.matmul(a.float(), b.float()).to(a.dtype)


@cache
def _torch_sums_in_fp32() -> bool:
    """Whether torch's fp16 products of few rows are exact here where partial sums leave fp16's range and precision."""
    row = torch.cat((torch.full((2048,), 1001.0), torch.full((2048,), -1000.0))).half()
    products = [torch.ones(count, 4096).half() @ row.expand(3, -1).contiguous().mT for count in (1, 3, FEW_ROWS)]
    return all(bool((product == 2048).all()) for product in products)


def einsum(layer: Layer) -> Op:
    """Sum products by an Einstein equation; ellipsis and repeated labels included."""
    equation, dtype = layer.option("equation").replace(" ", ""), layer.input_dtype()
    compute = layer.precision.accumulation(dtype)
    return lambda *operands: torch.einsum(equation, *[item.to(compute) for item in operands]).to(dtype)


def constant(layer: Layer) -> Lowered:
    """Return the layer's weights in its shape, without a copy where the API gives their memory."""
    shape = layer.ints("shape")
    assert shape is not None
    value = layer.weights("weights", layer.outputs[0].dtype)
    if value is None:
        value = torch.empty(0, dtype=layer.output_dtype(), device=layer.precision.device)
    fixed = value.reshape(shape)
    return Lowered(lambda: fixed, is_view=True)
