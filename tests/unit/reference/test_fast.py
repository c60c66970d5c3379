"""The fast way to compute: ONNX Runtime, and convolutions on packed weights; `Net.run` compares both ways, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.unit.reference.conftest import assert_same
from trtkit.dtypes import BF16, FP16, FP32
from trtkit.errors import ExecutionError
from trtkit.reference import Executor, Options


def convolution(net: Any, x: Any, weight: torch.Tensor, **attributes: Any) -> Any:
    """Return the output of a convolution of x with constant weights."""
    kernel, trt = weight.contiguous(), net.trt
    net.held.append(kernel)
    types = {torch.float32: "FLOAT", torch.float16: "HALF", torch.bfloat16: "BF16"}
    values = trt.Weights(getattr(trt.DataType, types[weight.dtype]), kernel.data_ptr(), kernel.numel())
    bias = trt.Weights(getattr(trt.DataType, types[weight.dtype]))
    layer = net.network.add_convolution_nd(x, len(weight), tuple(weight.shape[2:]), values, bias)
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer.get_output(0)


def both(net: Any, output: Any) -> tuple[Executor, Executor]:
    """Return the executor that computes layer by layer, and the fast one."""
    plain = net.executor(output)
    return plain, Executor(plain.layers, Options(is_fast=True))


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=str)
@pytest.mark.parametrize(
    ("channels", "groups", "kernel", "attributes"),
    [
        (8, 1, 3, {"padding_nd": (1, 1)}),
        (8, 8, 5, {"padding_nd": (2, 2), "stride_nd": (2, 2)}),
        (8, 4, 3, {"dilation_nd": (2, 1)}),
        (8, 1, 1, {}),
        (8, 1, 1, {"stride_nd": (2, 2)}),
        (8, 2, 1, {}),
    ],
)
def test_pictures_of_any_size_are_convolved_alike(
    net: Any, random: Any, dtype: Any, channels: int, groups: int, kernel: int, attributes: dict[str, Any]
) -> None:
    torch_type = getattr(torch, dtype.torch)
    x = net.given(torch.zeros(1, channels, 9, 9, dtype=torch_type), (-1, channels, -1, -1))
    weight = random(16, channels // groups, kernel, kernel, dtype=torch_type)
    plain, fast = both(net, convolution(net, x, weight, num_groups=groups, **attributes))
    for count, *size in ((1, 9, 9), (3, 9, 9), (2, 31, 12), (0, 9, 9), (1, 9, 9)):
        shape = (count, channels, *size)
        feed = {"input0": random(*shape, dtype=torch_type)}
        (want,), (got,) = plain.run(feed).values(), fast.run(feed).values()
        assert_same(got, want)


def test_numbers_that_are_not_finite_stay_visible(net: Any, random: Any) -> None:
    """oneDNN's own ReLU, fused into a convolution, would turn NaN into 0."""
    for_torch = random(8, 8, 3, 3, dtype=torch.bfloat16)
    x = random(1, 8, 6, 6, dtype=torch.bfloat16)
    x[0, :, 0, 0], x[0, 3, 5, 5] = float("nan"), float("inf")
    y = convolution(net, net.given(x), for_torch)
    relu = net.network.add_activation(y, net.trt.ActivationType.RELU).get_output(0)
    result = net.run(relu)
    assert torch.isnan(result).any()
    assert torch.isinf(result).any()


@pytest.mark.parametrize(("dtype", "has_session"), [(FP32, True), (FP16, False), (BF16, False)])
def test_onnx_runtime_computes_what_it_has_the_types_for(net: Any, random: Any, dtype: Any, has_session: bool) -> None:
    torch_type = getattr(torch, dtype.torch)
    x = random(1, 8, 6, 6, dtype=torch_type)
    _, fast = both(net, convolution(net, net.given(x), random(8, 8, 3, 3, dtype=torch_type)))
    assert fast.has_session == has_session


def test_a_layer_that_checks_its_input_still_does(net: Any, random: Any) -> None:
    x = net.given(torch.zeros(2, 8, 6, 6), (-1, 8, 6, 6))
    y = convolution(net, x, random(8, 8, 3, 3))
    trt, network = net.trt, net.network
    one = net.constant(torch.tensor([1], dtype=torch.int64).numpy())
    batch = network.add_slice(network.add_shape(x).get_output(0), (0,), (1,), (1,)).get_output(0)
    is_single = network.add_elementwise(batch, one, trt.ElementWiseOperation.EQUAL).get_output(0)
    network.add_assertion(is_single, "one picture")
    _, fast = both(net, y)
    assert not fast.has_session
    with pytest.raises(ExecutionError, match="one picture"):
        fast.run({"input0": torch.zeros(2, 8, 6, 6)})


def test_tensors_between_layers_are_computed_layer_by_layer(net: Any, random: Any) -> None:
    x, weight = random(1, 8, 6, 6), random(8, 8, 3, 3)
    y = convolution(net, net.given(x), weight)
    relu = net.network.add_activation(y, net.trt.ActivationType.RELU).get_output(0)
    _, fast = both(net, relu)
    (inner,) = fast.run({"input0": x}, keep=[y.name]).keys() - {relu.name}
    assert_same(fast.run({"input0": x}, keep=[inner])[inner], F.conv2d(x, weight))
    seen: list[str] = []
    fast.run({"input0": x}, on_tensor=lambda name, _: seen.append(name))
    assert {y.name, relu.name} <= set(seen)
    assert len(fast.layer_seconds({"input0": x})) == 2


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=str)
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("shape", [(96, 64), (8, 200)])
def test_products_with_constant_matrices_are_alike(
    net: Any, random: Any, dtype: Any, transposed: bool, shape: tuple[int, int]
) -> None:
    torch_type = getattr(torch, dtype.torch)
    x = net.given(torch.zeros(1, 1, shape[1], dtype=torch_type), (-1, -1, shape[1]))
    held = random(1, *shape, dtype=torch_type)
    matrix = (held if transposed else held.mT).contiguous()
    net.held.append(matrix)
    weights = net.trt.Weights(getattr(net.trt.DataType, dtype.tensorrt), matrix.data_ptr(), matrix.numel())
    constant = net.network.add_constant(tuple(matrix.shape), weights).get_output(0)
    operations = net.trt.MatrixOperation
    how = operations.TRANSPOSE if transposed else operations.NONE
    product = net.network.add_matrix_multiply(x, operations.NONE, constant, how).get_output(0)
    plain, fast = both(net, product)
    for rows in ((1, 1), (3, 1), (2, 70), (0, 1), (1, 0)):
        feed = {"input0": random(*rows, shape[1], dtype=torch_type)}
        (want,), (got,) = plain.run(feed).values(), fast.run(feed).values()
        assert_same(got, want)
        assert_same(want, (feed["input0"].double() @ held[0].mT.double()).to(torch_type))


@pytest.mark.parametrize("rows", [1, 5])
def test_fp16_products_leave_its_range_on_the_way_but_not_at_the_end(net: Any, rows: int) -> None:
    matrix = torch.full((64, 640), 200.0, dtype=torch.float16)
    matrix[1, 320:] = -200.0
    x = torch.full((1, rows, 640), 200.0, dtype=torch.float16)
    constant = net.constant(matrix[None].numpy())
    operations = net.trt.MatrixOperation
    layer = net.network.add_matrix_multiply(net.given(x), operations.NONE, constant, operations.TRANSPOSE)
    _, fast = both(net, layer.get_output(0))
    (got,) = fast.run({"input0": x}).values()
    assert torch.isinf(got[..., 0]).all()
    assert bool((got[..., 1] == 0).all())
