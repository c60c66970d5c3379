"""Matrix multiplication, einsum and constants."""

from __future__ import annotations

import torch

from trtkit.reference.layer import Layer, Lowered, Op, Tensor


def matrix_multiply(layer: Layer) -> Op:
    """Multiply collections of matrices or vectors, transposed where the layer says so."""
    left, right = layer.option("op0"), layer.option("op1")
    dtype = layer.input_dtype()
    compute = layer.precision.accumulation(dtype)

    def run(a: Tensor, b: Tensor) -> Tensor:
        a = a.mT if left == "TRANSPOSE" else a.unsqueeze(-2) if left == "VECTOR" else a
        b = b.mT if right == "TRANSPOSE" else b.unsqueeze(-1) if right == "VECTOR" else b
        y = torch.matmul(a, b) if dtype == compute else torch.matmul(a.to(compute), b.to(compute)).to(dtype)
        y = y.squeeze(-1) if right == "VECTOR" else y
        return y.squeeze(-2 if right != "VECTOR" else -1) if left == "VECTOR" else y

    return run


def einsum(layer: Layer) -> Op:
    """Sum products by an Einstein equation; ellipsis and repeated labels included."""
    equation, dtype = str(layer.trt.equation).replace(" ", ""), layer.input_dtype()
    compute = layer.precision.accumulation(dtype)
    return lambda *operands: torch.einsum(equation, *[item.to(compute) for item in operands]).to(dtype)


def constant(layer: Layer) -> Lowered:
    """Return the layer's weights in its shape, without a copy where the API gives their memory."""
    shape = tuple(layer.trt.shape)
    value = layer.weights("weights", layer.outputs[0].dtype)
    if value is None:
        value = torch.empty(0, dtype=layer.output_dtype(), device=layer.precision.device)
    fixed = value.reshape(shape)
    return Lowered(lambda: fixed, is_view=True)
