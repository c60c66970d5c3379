from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trtkit.errors import ExecutionError


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gather_takes_slices_and_counts_negative_indices_from_the_end(
    net: Any, random: Any, dtype: torch.dtype
) -> None:
    x, index = random(3, 5, 2), torch.tensor([[0, -1], [4, 2]], dtype=dtype)
    layer = net.network.add_gather(net.given(x), net.given(index), 1)
    assert_close(net.run(layer.get_output(0)), x[:, index % 5])


def test_gather_by_batch_takes_each_rows_own_indices(net: Any, random: Any) -> None:
    x, index = random(3, 4, 5), torch.tensor([[0, 4], [1, 1], [3, 2]], dtype=torch.int32)
    layer = net.network.add_gather(net.given(x), net.given(index), 2)
    layer.num_elementwise_dims = 1
    want = torch.stack([x[row][:, index[row].long()] for row in range(3)])
    assert_close(net.run(layer.get_output(0)), want)


def test_gather_nd_matches_numpy_with_batch_dimensions(net: Any, random: Any) -> None:
    x, index = random(2, 3, 4, 5), torch.tensor([[[0, 3], [2, 1]], [[1, 1], [0, 0]]], dtype=torch.int32)
    layer = net.network.add_gather_v2(net.given(x), net.given(index), net.trt.GatherMode.ND)
    layer.num_elementwise_dims = 1
    want = torch.stack([x[b][index[b, :, 0].long(), index[b, :, 1].long()] for b in range(2)])
    assert_close(net.run(layer.get_output(0)), want)


def test_gather_elements_matches_numpy(net: Any, random: Any) -> None:
    x, index = random(3, 4), torch.tensor([[2, 0, -1, 1]], dtype=torch.int64)
    layer = net.network.add_gather_v2(net.given(x), net.given(index), net.trt.GatherMode.ELEMENT)
    layer.axis = 0
    want = np.take_along_axis(x.numpy(), index.numpy(), 0)
    assert_close(net.run(layer.get_output(0)), torch.from_numpy(want))


def test_an_index_outside_the_axis_is_an_error_naming_the_layer(net: Any, random: Any) -> None:
    layer = net.network.add_gather(net.given(random(3, 2)), net.given(torch.tensor([7], dtype=torch.int32)), 0)
    layer.name = "embedding"
    with pytest.raises(ExecutionError, match="embedding: the GATHER layer cannot be computed"):
        net.run(layer.get_output(0))


def test_scatter_overwrites_elements_and_leaves_the_data(net: Any, random: Any) -> None:
    x, index, updates = random(3, 4), torch.tensor([[0, -1, 2, 1]], dtype=torch.int64), random(1, 4)
    before = x.clone()
    layer = net.network.add_scatter(net.given(x), net.given(index), net.given(updates), net.trt.ScatterMode.ELEMENT)
    layer.axis = 0
    want = x.clone()
    want[index[0] % 3, torch.arange(4)] = updates[0]
    assert_close(net.run(layer.get_output(0)), want)
    assert_close(x, before)


def test_scatter_nd_overwrites_slices(net: Any, random: Any) -> None:
    x, index, updates = random(4, 3, 2), torch.tensor([[1], [3]], dtype=torch.int32), random(2, 3, 2)
    layer = net.network.add_scatter(net.given(x), net.given(index), net.given(updates), net.trt.ScatterMode.ND)
    want = x.clone()
    want[[1, 3]] = updates
    assert_close(net.run(layer.get_output(0)), want)


def test_non_zero_lists_positions_by_axis(net: Any) -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    layer = net.network.add_non_zero(net.given(x), net.trt.int64)
    assert net.run(layer.get_output(0)).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("k", [1, 3])
def test_top_k_sorts_and_the_first_of_equals_leads(net: Any, axis: int, k: int) -> None:
    x = torch.tensor([[2.0, 1, 2, 1], [3, 1, 0, 1], [3, 5, 2, 1]])
    layer = net.network.add_topk(net.given(x), net.trt.TopKOperation.MAX, k, 1 << axis)
    values, places = net.run(layer.get_output(0), layer.get_output(1))
    order = np.argsort(-x.numpy(), axis, kind="stable").take(range(k), axis)
    assert places.tolist() == order.tolist()
    assert_close(values, torch.from_numpy(np.take_along_axis(x.numpy(), order, axis)))


@pytest.mark.parametrize(("op", "want"), [("SUM", 0), ("PROD", 1), ("MAX", -np.inf), ("MIN", np.inf)])
def test_a_reduction_of_nothing_gives_the_neutral_element(net: Any, op: str, want: float) -> None:
    layer = net.network.add_reduce(net.given(torch.zeros(2, 0)), getattr(net.trt.ReduceOperation, op), 2, False)
    assert net.run(layer.get_output(0)).tolist() == [want, want]


def test_reductions_of_several_axes_match_numpy_in_each_type(net: Any, random: Any) -> None:
    x, whole = random(2, 3, 4, dtype=torch.float16), torch.arange(-11, 13, dtype=torch.int32).reshape(2, 3, 4)
    mean, product, total, average = (
        net.network.add_reduce(tensor, op, 0b101, keep).get_output(0)
        for tensor, op, keep in (
            (net.given(x), net.trt.ReduceOperation.AVG, True),
            (net.given(x), net.trt.ReduceOperation.PROD, False),
            (net.given(whole), net.trt.ReduceOperation.SUM, False),
            (net.given(whole), net.trt.ReduceOperation.AVG, False),
        )
    )
    found = net.run(mean, product, total, average)
    assert_close(found[0], x.double().mean((0, 2), True).half(), rtol=2**-10, atol=1e-4)
    assert_close(found[1], x.double().prod(2).prod(0).half(), rtol=2**-9, atol=1e-4)
    assert found[2].dtype == torch.int32
    assert found[2].tolist() == whole.sum((0, 2)).tolist()
    assert found[3].tolist() == [int(item / 8) for item in whole.sum((0, 2)).tolist()]


@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
def test_cumulative_sums_run_from_either_end(net: Any, random: Any, exclusive: bool, reverse: bool) -> None:
    x = random(2, 5)
    layer = net.network.add_cumulative(
        net.given(x), net.constant(np.int32(1)), net.trt.CumulativeOperation.SUM, exclusive, reverse
    )
    run = x.flip(1) if reverse else x
    want = run.cumsum(1) - (run if exclusive else 0)
    assert_close(net.run(layer.get_output(0)), want.flip(1) if reverse else want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("axes", "groups", "shape"), [(0b1000, 1, (1, 1, 1, 6)), (0b1100, 2, (1, 4, 1, 1)), (0b1100, 1, (1, 4, 1, 1))]
)
def test_layer_group_and_instance_normalization_match_torch(
    net: Any, random: Any, axes: int, groups: int, shape: tuple[int, ...]
) -> None:
    x, scale, bias = random(2, 4, 5, 6), random(*shape), random(*shape)
    layer = net.network.add_normalization_v2(
        net.given(x), net.constant(scale.numpy()), net.constant(bias.numpy()), axes
    )
    layer.num_groups, layer.epsilon = groups, 1e-3
    flat = scale.reshape(-1), bias.reshape(-1)
    if axes == 0b1000:
        want = torch.nn.functional.layer_norm(x, (6,), *flat, 1e-3)
    else:
        want = torch.nn.functional.group_norm(x, groups if groups > 1 else 4, *flat, 1e-3)
    assert_close(net.run(layer.get_output(0)), want)


@pytest.mark.parametrize("equation", ["bij,bjk->bik", "bii->bi", "...ij->...ji", "ij,jk,kl->il"])
def test_einsum_matches_torch(net: Any, random: Any, equation: str) -> None:
    operands = {"bij,bjk->bik": 2, "bii->bi": 1, "...ij->...ji": 1, "ij,jk,kl->il": 3}[equation]
    rank = 2 if operands == 3 else 3
    values = [random(*[4] * rank) for _ in range(operands)]
    layer = net.network.add_einsum([net.given(value) for value in values], equation)
    assert_close(net.run(layer.get_output(0)), torch.einsum(equation, *values))


@pytest.mark.parametrize(
    ("a", "b", "ops"),
    [
        ((2, 3, 4), (2, 5, 4), ("NONE", "TRANSPOSE")),
        ((4,), (4, 3), ("VECTOR", "NONE")),
        ((2, 4), (2, 4), ("VECTOR", "VECTOR")),
    ],
)
def test_matrix_multiply_treats_operands_as_matrices_or_vectors(
    net: Any, random: Any, a: tuple[int, ...], b: tuple[int, ...], ops: tuple[str, str]
) -> None:
    x, y = random(*a), random(*b)
    left, right = (getattr(net.trt.MatrixOperation, op) for op in ops)
    layer = net.network.add_matrix_multiply(net.given(x), left, net.given(y), right)
    want = x @ y.mT if ops[1] == "TRANSPOSE" else x @ y if ops[0] == "VECTOR" and ops[1] == "NONE" else (x * y).sum(-1)
    assert_close(net.run(layer.get_output(0)), want)
