from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.unit.network.ops.evaluate import assert_close, backend, evaluate, random
from trtkit.dtypes import BF16, FP8, FP16, FP32, INT32
from trtkit.errors import NetworkError
from trtkit.network.graph import Graph, Tensor
from trtkit.network.ops.arithmetic import cast, equal, maximum, mean, select, softmax, sqrt, sum_over
from trtkit.network.ops.gather import embedding, token_at
from trtkit.network.ops.linear import linear, matmul

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATORS: dict[str, Callable[..., object]] = {
    "a+b": lambda a, b: a + b,
    "a-b": lambda a, b: a - b,
    "a*b": lambda a, b: a * b,
    "a/b": lambda a, b: a / b,
    "a+2": lambda a, _: a + 2,
    "3-b": lambda _, b: 3 - b,
    "0.5*a": lambda a, _: 0.5 * a,
    "2/b": lambda _, b: 2 / b,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("shape", [(2, 3, 5), (5,)], ids=["same rank", "lower rank"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_operators_match_torch(name: str, shape: tuple[int, ...], dtype: str) -> None:
    a, b = random(2, 3, 5, dtype=dtype), random(*shape, dtype=dtype) + 4
    want = OPERATORS[name](a.double(), b.double())
    assert_close(evaluate(OPERATORS[name], a, b), want, dtype)


def test_reductions_and_selection_match_torch() -> None:
    x, y = random(2, 3, 5), random(2, 3, 5)
    assert_close(evaluate(lambda t: mean(t, -1), x), x.mean(-1, keepdim=True))
    assert_close(evaluate(lambda t: sum_over(t, 1), x), x.sum(1))
    assert_close(evaluate(lambda t: softmax(t, 1), x), x.softmax(1))
    assert_close(evaluate(lambda t: sqrt(t * t), x), x.abs())
    assert_close(evaluate(lambda a, b: select(a > b, a, -7.0), x, y), torch.where(x > y, x, torch.tensor(-7.0)))
    assert_close(evaluate(maximum, x, y), torch.maximum(x, y))
    ids = torch.tensor([[1, 2], [2, 3]], dtype=torch.int32)
    assert torch.equal(evaluate(lambda t: equal(t, 2), ids), ids == 2)


def test_a_cast_to_the_same_type_adds_nothing() -> None:
    graph = Graph(backend())
    x = graph.input("x", FP16, (2, 2))
    assert cast(x, FP16) is x
    assert cast(x, FP32).dtype == FP32


@pytest.mark.parametrize("is_in_out", [False, True])
def test_linear_matches_torch(is_in_out: bool) -> None:
    x, weight, bias = random(2, 3, 5), random(7, 5), random(7)
    stored = weight.T.contiguous() if is_in_out else weight

    def build(t: Tensor) -> Tensor:
        return linear(t, t.graph.constant(stored), t.graph.constant(bias), is_in_out=is_in_out)

    assert_close(evaluate(build, x), torch.nn.functional.linear(x, weight, bias))


def test_matmul_repeats_leading_axes() -> None:
    a, b = random(2, 3, 4, 5), random(6, 5)
    assert_close(evaluate(lambda x, y: matmul(x, y, transpose_b=True), a, b), a @ b.T)


def test_gathers_pick_rows_and_one_token_of_each_sequence() -> None:
    table, ids, x = random(9, 4), torch.tensor([[8, 0, 3]], dtype=torch.int32), random(3, 5, 4)
    assert torch.equal(evaluate(lambda t, i: embedding(i, t), table, ids), table[ids.long()])
    at = torch.tensor([4, 0, 2], dtype=torch.int32)
    assert torch.equal(evaluate(token_at, x, at), torch.stack([x[0, 4], x[1, 0], x[2, 2]]))


def test_numpy_weights_round_to_bf16_as_torch_does() -> None:
    values = np.concatenate([np.random.default_rng(0).normal(size=500), [0.0, -0.0, 1e-40, 3e38, np.inf, np.nan]])
    array = values.astype(np.float32)
    got = evaluate(lambda t: t * 0.0 + t.graph.constant(array, dtype=BF16), torch.zeros(506, dtype=torch.bfloat16))
    want = torch.from_numpy(array).bfloat16()
    assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))


def test_weights_are_not_copied_and_stay_alive() -> None:
    graph, weight = Graph(backend()), torch.arange(6, dtype=torch.float32).reshape(2, 3)
    y = graph.constant(weight)
    weight[0, 0] = 42.0  # shared memory: a later change shows
    graph.output(y, "y")
    del weight
    layer = graph.backend.typed(graph.network.get_layer(0))
    assert layer.weights.tolist() == [42.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_layers_are_named_by_scope_and_never_alike() -> None:
    graph = Graph(backend())
    x = graph.input("x", FP32, (2, 2))
    with graph.scope("layers.7"), graph.scope("attention"):
        first, second = x + x, x + x
    assert (first.name, second.name) == ("layers.7/attention/sum", "layers.7/attention/sum_1")


def test_shapes_that_do_not_fit_are_an_error_with_the_layers_path_and_tensorrts_words() -> None:
    graph = Graph(backend())
    a, b = graph.input("a", FP32, (-1, 3)), graph.input("b", FP32, (-1, 4))
    with graph.scope("layers.0"), pytest.raises(NetworkError, match=r"^layers\.0/sum: .*must be conformable") as caught:
        _ = a + b
    assert "cuda" not in str(caught.value).lower()


def test_types_that_do_not_fit_are_an_error() -> None:
    graph = Graph(backend())
    a, b = graph.input("a", FP32, (2, 3)), graph.input("b", INT32, (2, 3))
    with pytest.raises(NetworkError, match="sum"):
        _ = a + b
    assert graph.input("c", FP8, (2, 2)).dtype == FP8


def test_two_inputs_of_one_name_are_an_error() -> None:
    graph = Graph(backend())
    graph.input("a", FP32, (2,))
    with pytest.raises(NetworkError, match="input `a` of shape"):
        graph.input("a", FP32, (3,))
