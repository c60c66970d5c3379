from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trtkit.errors import ExecutionError
from trtkit.reference import Executor, Options, ThreadGroup, read_layers, run_ranks


def _double_relu(net: Any, dtype: torch.dtype = torch.float32) -> Any:
    x = net.given(torch.tensor([-1.0, 2.0], dtype=dtype))
    doubled = net.network.add_elementwise(x, x, net.trt.ElementWiseOperation.SUM).get_output(0)
    doubled.name = "doubled"
    output = net.network.add_activation(doubled, net.trt.ActivationType.RELU).get_output(0)
    output.name = "output"
    return output


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({}, "missing input `input0`\nfix: the network's inputs are input0"),
        ({"input0": np.zeros(2, np.float32), "y": 1}, "unknown input `y`\nfix: the network's inputs are input0"),
        (
            {"input0": np.zeros(2, np.float64)},
            "input `input0`: got type float64; expected fp32\nfix: convert it to float32",
        ),
        (
            {"input0": np.zeros((1, 3), np.float32)},
            "input `input0`: got shape [1, 3]; expected [2]\nfix: -1 means any size",
        ),
    ],
)
def test_wrong_inputs_are_told_with_what_is_wanted(net: Any, feed: dict[str, Any], message: str) -> None:
    executor = net.executor(_double_relu(net))
    with pytest.raises(ExecutionError) as error:
        executor.run(feed)
    assert str(error.value) == message


def test_kept_tensors_are_not_overwritten_by_later_layers(net: Any) -> None:
    executor = net.executor(_double_relu(net))
    found = executor.run(net.feed, keep=["doubled"])
    assert found["doubled"].tolist() == [-2.0, 4.0]
    assert found["output"].tolist() == [0.0, 4.0]
    assert set(executor.run(net.feed, keep="all")) == {"input0", "doubled", "output"}


def test_a_callback_sees_every_tensor_in_order(net: Any) -> None:
    seen: list[tuple[str, list[float]]] = []
    executor = net.executor(_double_relu(net))
    executor.run(net.feed, on_tensor=lambda name, value: seen.append((name, value.tolist())))
    assert seen == [("doubled", [-2.0, 4.0]), ("output", [0.0, 4.0])]


def test_keeping_an_unknown_tensor_is_an_error(net: Any) -> None:
    executor = net.executor(_double_relu(net))
    with pytest.raises(ExecutionError, match="there is no tensor `tripled` in the network"):
        executor.run(net.feed, keep=["tripled"])


@pytest.mark.parametrize(("widen", "dtype"), [("fp32", torch.float32), ("fp64", torch.float64)])
def test_widening_computes_the_same_network_without_fp16_rounding(net: Any, widen: str, dtype: torch.dtype) -> None:
    x = net.given(torch.tensor([60000.0], dtype=torch.float16))
    doubled = net.network.add_elementwise(x, x, net.trt.ElementWiseOperation.SUM).get_output(0)
    third = net.network.add_elementwise(
        doubled, net.constant(np.array([3], np.float16)), net.trt.ElementWiseOperation.DIV
    ).get_output(0)
    own = net.run(third)
    wide = next(iter(Executor(read_layers(net.backend, net.network), Options(widen=widen)).run(net.feed).values()))
    assert own.tolist() == [math.inf]
    assert wide.dtype == dtype
    assert_close(wide, torch.tensor([60000 * 2 / 3], dtype=torch.float64).to(dtype))


def test_an_unknown_widening_is_an_error(net: Any) -> None:
    with pytest.raises(ExecutionError, match="unknown widening `fp16`"):
        net.executor(_double_relu(net), widen="fp16")


def test_every_tensor_has_the_networks_own_type(net: Any, random: Any) -> None:
    x = net.given(random(2, 8, dtype=torch.bfloat16))
    softmax = net.network.add_softmax(x).get_output(0)
    product = net.network.add_matrix_multiply(
        softmax, net.trt.MatrixOperation.NONE, x, net.trt.MatrixOperation.TRANSPOSE
    ).get_output(0)
    total = net.network.add_reduce(product, net.trt.ReduceOperation.SUM, 2, False).get_output(0)
    executor = net.executor(total)
    found = executor.run(net.feed, keep="all")
    assert {value.dtype for value in found.values()} == {torch.bfloat16}


def test_an_unknown_layer_is_an_error_naming_it(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from trtkit.reference import compile as compiler

    monkeypatch.setattr(compiler, "LOWERINGS", {})
    output = _double_relu(net)
    net.network.get_layer(0).name = "double"
    with pytest.raises(ExecutionError, match="double: layer type ELEMENTWISE is not known"):
        net.executor(output)


def test_constants_computed_from_constants_leave_no_step(net: Any) -> None:
    one, two = net.constant(np.float32([1])), net.constant(np.float32([2]))
    three = net.network.add_elementwise(one, two, net.trt.ElementWiseOperation.SUM).get_output(0)
    output = net.network.add_elementwise(net.given(torch.ones(1)), three, net.trt.ElementWiseOperation.SUM)
    seen: list[str] = []
    executor = net.executor(output.get_output(0))
    (got,) = executor.run(net.feed, on_tensor=lambda name, _: seen.append(name)).values()
    assert got.tolist() == [4.0]
    assert len(seen) == 1


def _counting_loop(net: Any, limit: Any, kind: str) -> tuple[Any, Any]:
    """Sum 0 + 1 + 2 ... in a loop; return the final sum and every partial one."""
    trt, loop = net.trt, net.network.add_loop()
    one = net.constant(np.int32([1]))
    counter = loop.add_recurrence(net.constant(np.int32([0])))
    total = loop.add_recurrence(net.constant(np.int32([0])))
    counter.set_input(
        1, net.network.add_elementwise(counter.get_output(0), one, trt.ElementWiseOperation.SUM).get_output(0)
    )
    added = net.network.add_elementwise(total.get_output(0), counter.get_output(0), trt.ElementWiseOperation.SUM)
    total.set_input(1, added.get_output(0))
    if kind == "COUNT":
        loop.add_trip_limit(limit, trt.TripLimit.COUNT)
    else:
        below = net.network.add_elementwise(counter.get_output(0), limit, trt.ElementWiseOperation.LESS)
        scalar = net.network.add_shuffle(below.get_output(0))
        scalar.reshape_dims = ()
        loop.add_trip_limit(scalar.get_output(0), trt.TripLimit.WHILE)
    last = loop.add_loop_output(total.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0)
    every = loop.add_loop_output(added.get_output(0), trt.LoopOutput.REVERSE)
    every.set_input(1, net.constant(np.int32(5)))
    return last, every.get_output(0)


@pytest.mark.parametrize("kind", ["COUNT", "WHILE"])
def test_loops_run_by_count_and_while_a_condition_holds(net: Any, kind: str) -> None:
    limit = torch.tensor(5, dtype=torch.int32) if kind == "COUNT" else torch.tensor([5], dtype=torch.int32)
    last, every = net.run(*_counting_loop(net, net.given(limit), kind))
    assert last.tolist() == [10]
    assert every.reshape(-1).tolist() == [10, 6, 3, 1, 0]


def test_a_loop_does_not_overwrite_what_it_reads_in_every_iteration(net: Any) -> None:
    x, trt, loop = net.given(torch.tensor([1.0, 2.0])), net.trt, net.network.add_loop()
    outer = net.network.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)
    total = loop.add_recurrence(net.constant(np.float32([0, 0])))
    added = net.network.add_elementwise(outer, total.get_output(0), trt.ElementWiseOperation.SUM).get_output(0)
    total.set_input(1, added)
    loop.add_trip_limit(net.constant(np.int32(3)), trt.TripLimit.COUNT)
    last = loop.add_loop_output(total.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0)
    assert net.run(last).tolist() == [6.0, 12.0]


def test_a_loop_of_no_iterations_gives_the_initial_state(net: Any) -> None:
    last, every = net.run(*_counting_loop(net, net.given(torch.tensor(0, dtype=torch.int32)), "COUNT"))
    assert last.tolist() == [0]
    assert every.dtype == torch.int32
    assert every.tolist() == [[0]] * 5


@pytest.mark.parametrize(("choice", "want"), [(True, [2.0, 4.0]), (False, [1.0, 1.0])])
def test_only_the_chosen_branch_is_computed(net: Any, choice: bool, want: list[float]) -> None:
    x, trt = net.given(torch.tensor([1.0, 2.0])), net.trt
    conditional = net.network.add_if_conditional()
    conditional.set_condition(net.given(torch.tensor(choice)))
    inside = conditional.add_input(x).get_output(0)
    doubled = net.network.add_elementwise(inside, inside, trt.ElementWiseOperation.SUM).get_output(0)
    index = net.given(torch.tensor([0, 0 if not choice else 9], dtype=torch.int32))
    first = net.network.add_gather(inside, index, 0).get_output(0)
    output = conditional.add_output(doubled, first).get_output(0)
    assert net.run(output).tolist() == want


def test_ranks_exchange_tensors_in_one_process(backend: Any, logger: Any) -> None:
    networks = []
    for _ in range(2):
        network = backend.trt.Builder(logger).create_network(0)
        x = network.add_input("x", backend.trt.float32, (2,))
        layer = network.add_dist_collective(
            x, backend.trt.CollectiveOperation.ALL_REDUCE, backend.trt.ReduceOperation.SUM, -1, None
        )
        layer.metadata = '{"collective": {"operation": "ALL_REDUCE", "reduce_op": "SUM"}}'
        network.mark_output(layer.get_output(0))
        networks.append(network)
    group = ThreadGroup(2)
    executors = [
        Executor(read_layers(backend, network), Options(ranks=group.member(rank)))
        for rank, network in enumerate(networks)
    ]
    found = run_ranks(executors, [{"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([10.0, 20.0])}])
    assert [next(iter(item.values())).tolist() for item in found] == [[11.0, 22.0], [11.0, 22.0]]


def test_every_tensor_has_the_shape_and_type_that_the_network_states(net: Any, random: Any) -> None:
    last, every = _counting_loop(net, net.given(torch.tensor(5, dtype=torch.int32)), "COUNT")
    total = net.network.add_reduce(every, net.trt.ReduceOperation.SUM, 1, True).get_output(0)
    flat = net.network.add_shuffle(total)
    flat.reshape_dims = (-1,)
    joined = net.network.add_concatenation([last, flat.get_output(0)]).get_output(0)
    executor = net.executor(net.network.add_cast(joined, net.trt.float16).get_output(0))
    found = executor.run(net.feed, keep="all")
    outputs = [net.network.get_layer(index).get_output(0) for index in range(net.network.num_layers)]
    seen = {item.name: item for item in outputs if item is not None and item.name in found}
    assert len(seen) > 4
    for name, tensor in seen.items():
        assert tuple(found[name].shape) == tuple(tensor.shape), name


def test_sizes_need_no_data(net: Any) -> None:
    x, trt = net.given(torch.randn(2, 6), (-1, 6)), net.trt
    sizes = net.network.add_shape(x).get_output(0)  # a size and data, too: it is an output
    turned = net.network.add_gather(sizes, net.constant(np.array([1, 0])), 0).get_output(0)
    layer = net.network.add_shuffle(x)
    layer.set_input(1, turned)
    ramp = net.network.add_fill((1, 1), trt.FillOperation.LINSPACE, trt.DataType.INT64)
    ramp.set_input(0, net.network.add_gather(sizes, net.constant(np.array([1])), 0).get_output(0))
    ramp.set_input(1, net.constant(np.array(3, np.int64)))
    ramp.set_input(2, net.constant(np.array([2], np.int64)))
    executor = net.executor(layer.get_output(0), turned, ramp.get_output(0), device="meta")
    outputs = executor.run({"input0": torch.empty(4, 6, device="meta")})
    assert [tuple(value.shape) for value in outputs.values()] == [(6, 4), (2,), (6,)]
    reshaped, numbers, steps = outputs.values()
    assert (reshaped.device.type, numbers.tolist(), steps.tolist()) == ("meta", [6, 4], [3, 5, 7, 9, 11, 13])


@pytest.mark.parametrize("causal", ["NONE", "LOWER_RIGHT"])
def test_a_device_is_not_waited_for(net: Any, causal: str) -> None:
    trt = net.trt
    cache, update = net.given(torch.zeros(2, 1, 8, 4)), net.given(torch.randn(2, 1, 3, 4))
    places = net.given(torch.tensor([0, 5], dtype=torch.int32))
    written = net.network.add_kv_cache_update(cache, update, places, trt.KVCacheMode.LINEAR).get_output(0)
    query = net.given(torch.randn(2, 2, 3, 4))
    attention = net.network.add_attention(query, written, written, trt.AttentionNormalizationOp.SOFTMAX, False)
    attention.causal_kind = getattr(trt.CausalMaskKind, causal)
    executor = net.executor(attention.get_output(0), device="meta")
    outputs = executor.run({name: value.to("meta") for name, value in net.feed.items()})
    assert [tuple(value.shape) for value in outputs.values()] == [(2, 2, 3, 4)]
