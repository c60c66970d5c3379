from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.testing import assert_close


def _binary(net: Any, a: torch.Tensor, b: torch.Tensor, op: str) -> Any:
    layer = net.network.add_elementwise(net.given(a), net.given(b), getattr(net.trt.ElementWiseOperation, op))
    return net.run(layer.get_output(0))


@pytest.mark.parametrize(
    ("op", "want"),
    [("DIV", [-3, 3, -3, 3]), ("FLOOR_DIV", [-4, 3, -4, 3])],
)
def test_whole_numbers_divide_towards_zero_and_floor_division_down(net: Any, op: str, want: list[int]) -> None:
    a, b = torch.tensor([-7, 7, 7, -7], dtype=torch.int32), torch.tensor([2, 2, -2, -2], dtype=torch.int32)
    assert _binary(net, a, b, op).tolist() == want


@pytest.mark.parametrize("op", ["MAX", "MIN"])
def test_max_and_min_give_the_number_where_one_side_is_nan(net: Any, op: str) -> None:
    """TensorRT differs from ONNX Runtime here: https://github.com/NVIDIA/TensorRT/issues/4758."""
    a, b = torch.tensor([1.0, math.nan, math.nan]), torch.tensor([math.nan, 2.0, math.nan])
    got = _binary(net, a, b, op).tolist()
    assert got[:2] == [1.0, 2.0]
    assert math.isnan(got[2])


@pytest.mark.parametrize(("op", "function"), [("POW", torch.pow), ("SUB", torch.sub), ("PROD", torch.mul)])
def test_sizes_of_one_are_repeated(net: Any, random: Any, op: str, function: Any) -> None:
    a, b = random(2, 1, 5).abs() + 0.1, random(1, 3, 5)
    assert_close(_binary(net, a, b, op), function(a, b))


@pytest.mark.parametrize(("op", "want"), [("XOR", [0, 1, 1, 0]), ("AND", [0, 0, 0, 1]), ("OR", [0, 1, 1, 1])])
def test_logic_on_booleans(net: Any, op: str, want: list[int]) -> None:
    a, b = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    assert _binary(net, a, b, op).tolist() == [bool(item) for item in want]


UNARY = {
    "EXP": np.exp,
    "RECIP": np.reciprocal,
    "ATANH": lambda x: np.arctanh(x / 10),
    "ERF": np.vectorize(math.erf),
    "SIGN": np.sign,
    "CEIL": np.ceil,
    "TAN": np.tan,
    "ASINH": np.arcsinh,
}


@pytest.mark.parametrize("op", UNARY)
def test_unary_operations_match_numpy(net: Any, random: Any, op: str) -> None:
    x = random(3, 5)
    scaled = x / 10 if op == "ATANH" else x
    layer = net.network.add_unary(net.given(scaled), getattr(net.trt.UnaryOperation, op))
    assert_close(net.run(layer.get_output(0)), torch.from_numpy(UNARY[op](x.numpy())).float())


def test_round_goes_to_the_even_neighbour(net: Any) -> None:
    layer = net.network.add_unary(net.given(torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5])), net.trt.UnaryOperation.ROUND)
    assert net.run(layer.get_output(0)).tolist() == [0, 2, 2, 0, -2]


def test_isnan_and_isinf_give_booleans(net: Any) -> None:
    x = net.given(torch.tensor([math.nan, math.inf, 1.0]))
    is_nan, is_inf = (
        net.network.add_unary(x, op).get_output(0)
        for op in (net.trt.UnaryOperation.ISNAN, net.trt.UnaryOperation.ISINF)
    )
    found = net.run(is_nan, is_inf)
    assert [item.tolist() for item in found] == [[True, False, False], [False, True, False]]


ALPHA, BETA = 0.3, 0.7
ACTIVATIONS = {
    "RELU": lambda x: np.maximum(x, 0),
    "LEAKY_RELU": lambda x: np.where(x >= 0, x, ALPHA * x),
    "ELU": lambda x: np.where(x >= 0, x, ALPHA * (np.exp(x) - 1)),
    "SELU": lambda x: np.where(x > 0, BETA * x, BETA * (ALPHA * np.exp(x) - ALPHA)),
    "SOFTSIGN": lambda x: x / (1 + np.abs(x)),
    "SOFTPLUS": lambda x: ALPHA * np.log(np.exp(BETA * x) + 1),
    "CLIP": lambda x: np.maximum(ALPHA, np.minimum(BETA, x)),
    "HARD_SIGMOID": lambda x: np.clip(ALPHA * x + BETA, 0, 1),
    "SCALED_TANH": lambda x: ALPHA * np.tanh(BETA * x),
    "THRESHOLDED_RELU": lambda x: np.where(x > ALPHA, x, 0),
    "GELU_ERF": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "GELU_TANH": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (0.044715 * x**3 + x))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_follow_tensorrts_formulas(net: Any, random: Any, kind: str, dtype: torch.dtype) -> None:
    x = random(7, 11, dtype=dtype)
    layer = net.network.add_activation(net.given(x), getattr(net.trt.ActivationType, kind))
    layer.alpha, layer.beta = ALPHA, BETA
    got = net.run(layer.get_output(0))
    want = torch.from_numpy(ACTIVATIONS[kind](x.double().numpy()))
    assert got.dtype == dtype
    assert_close(got.double(), want, rtol=1e-5 if dtype == torch.float32 else 2**-10, atol=2e-6)


def test_clip_limit_beyond_the_types_range_is_none(net: Any) -> None:
    layer = net.network.add_activation(net.given(torch.tensor([-9.0, 0.0, 9.0]).half()), net.trt.ActivationType.CLIP)
    layer.alpha, layer.beta = 1e-5, 3.4e38
    want = torch.tensor([1e-5, 1e-5, 9.0]).half()
    assert_close(net.run(layer.get_output(0)), want, rtol=0, atol=0)


def test_clip_with_crossed_limits_gives_the_lower_one(net: Any) -> None:
    layer = net.network.add_activation(net.given(torch.tensor([-9.0, 0.0, 9.0])), net.trt.ActivationType.CLIP)
    layer.alpha, layer.beta = 2.0, 1.0
    assert net.run(layer.get_output(0)).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("mode", ["UNIFORM", "CHANNEL", "ELEMENTWISE"])
def test_scale_multiplies_shifts_and_raises(net: Any, random: Any, mode: str) -> None:
    x = random(2, 3, 4, 5)
    shape = {"UNIFORM": (1,), "CHANNEL": (3, 1, 1), "ELEMENTWISE": (3, 4, 5)}[mode]
    scale, shift = random(*shape), random(*shape)
    power = torch.full(shape, 2.0)
    held = [item.reshape(-1).numpy() for item in (shift, scale, power)]
    net.held += held
    layer = net.network.add_scale_nd(net.given(x), getattr(net.trt.ScaleMode, mode), *held, 1)
    assert_close(net.run(layer.get_output(0)), (x * scale + shift) ** 2)


def test_a_relu_does_not_overwrite_what_another_layer_reads(net: Any, random: Any) -> None:
    x = random(4, 4)
    total = net.network.add_elementwise(net.given(x), net.given(x), net.trt.ElementWiseOperation.SUM).get_output(0)
    relu = net.network.add_activation(total, net.trt.ActivationType.RELU).get_output(0)
    difference = net.network.add_elementwise(total, relu, net.trt.ElementWiseOperation.SUB).get_output(0)
    assert_close(net.run(difference), 2 * x - F.relu(2 * x))


def test_running_leaves_the_inputs_as_they_are(net: Any, random: Any) -> None:
    x = random(4, 4)
    before = x.clone()
    relu = net.network.add_activation(net.given(x), net.trt.ActivationType.RELU).get_output(0)
    executor = net.executor(relu)
    first, second = executor.run(net.feed), executor.run(net.feed)
    assert_close(x, before)
    assert_close(list(first.values()), list(second.values()))


def test_casts_to_whole_numbers_saturate_and_nan_becomes_zero(net: Any) -> None:
    """As PTX `cvt` converts; C++ and torch leave it undefined."""
    x = torch.tensor([3e9, -3e9, math.nan, 2.9, -2.9])
    layer = net.network.add_cast(net.given(x), net.trt.int32)
    assert net.run(layer.get_output(0)).tolist() == [2147483647, -2147483648, 0, 2, -2]


def test_softmax_of_fp16_sums_in_fp32(net: Any, random: Any) -> None:
    x = random(3, 2000, dtype=torch.float16)
    layer = net.network.add_softmax(net.given(x))
    layer.axes = 2
    assert_close(net.run(layer.get_output(0)), torch.softmax(x.double(), 1).half(), rtol=2**-9, atol=1e-6)


def test_ragged_softmax_stops_at_each_rows_bound(net: Any, random: Any) -> None:
    x, bounds = random(1, 3, 6), torch.tensor([[[2], [6], [1]]], dtype=torch.int32)
    layer = net.network.add_ragged_softmax(net.given(x), net.given(bounds))
    want = torch.zeros(1, 3, 6)
    for row, bound in enumerate((2, 6, 1)):
        want[0, row, :bound] = torch.softmax(x[0, row, :bound], 0)
    assert_close(net.run(layer.get_output(0)), want)


def test_parametric_relu_scales_negatives_by_their_slope(net: Any, random: Any) -> None:
    x, slope = random(2, 3, 4), random(1, 3, 1)
    layer = net.network.add_parametric_relu(net.given(x), net.constant(slope.numpy()))
    assert_close(net.run(layer.get_output(0)), torch.where(x < 0, x * slope, x))
