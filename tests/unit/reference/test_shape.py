from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from trtkit.errors import ExecutionError
from trtkit.reference.layers.shape import _sampled


def test_shuffle_transposes_reshapes_and_transposes_again(net: Any, random: Any) -> None:
    x = random(2, 3, 4)
    layer = net.network.add_shuffle(net.given(x))
    layer.first_transpose, layer.reshape_dims, layer.second_transpose = (2, 0, 1), (0, -1), (1, 0)
    assert_close(net.run(layer.get_output(0)), x.permute(2, 0, 1).reshape(4, 6).t())


def test_a_zero_size_is_taken_literally_where_it_is_no_placeholder(net: Any) -> None:
    layer = net.network.add_shuffle(net.given(torch.zeros(0, 4)))
    layer.zero_is_placeholder, layer.reshape_dims = False, (2, 0)
    assert tuple(net.run(layer.get_output(0)).shape) == (2, 0)


def test_reshape_sizes_may_be_computed_from_a_dynamic_shape(net: Any, random: Any) -> None:
    x = net.given(random(2, 3, 4), (-1, 3, -1))
    shape = net.network.add_shape(x).get_output(0)
    batch = net.network.add_slice(shape, (0,), (1,), (1,)).get_output(0)
    rest = net.constant(np.array([-1], np.int64))
    layer = net.network.add_shuffle(x)
    layer.set_input(1, net.network.add_concatenation([batch, rest]).get_output(0))
    assert_close(net.run(layer.get_output(0)), net.feed["input0"].reshape(2, 12))


MODES = {"WRAP": "wrap", "CLAMP": "edge", "REFLECT": "reflect"}


@pytest.mark.parametrize("mode", MODES)
def test_slices_outside_the_tensor_follow_their_mode(net: Any, random: Any, mode: str) -> None:
    x = random(3, 5)
    layer = net.network.add_slice(net.given(x), (-2, -3), (7, 11), (1, 1))
    layer.mode = getattr(net.trt.SampleMode, mode)
    want = np.pad(x.numpy(), ((2, 2), (3, 3)), mode=MODES[mode])
    assert_close(net.run(layer.get_output(0)), torch.from_numpy(want))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_filled_slice_takes_its_value_from_the_fifth_input(net: Any, random: Any, stride: int) -> None:
    x = random(4, 4)
    layer = net.network.add_slice(net.given(x), (-1, 0), (3, 4), (stride, 1))
    layer.mode = net.trt.SampleMode.FILL
    layer.set_input(4, net.constant(np.float32(7.5)))
    want = torch.cat((torch.full((1, 4), 7.5), x))[::stride][:3]
    assert_close(net.run(layer.get_output(0)), want)


def test_negative_and_zero_strides_walk_back_and_stay(net: Any, random: Any) -> None:
    x = random(3, 5)
    layer = net.network.add_slice(net.given(x), (1, 4), (4, 3), (0, -2))
    assert_close(net.run(layer.get_output(0)), x[[1, 1, 1, 1]][:, [4, 2, 0]])


def test_a_strict_slice_outside_the_tensor_is_an_error(net: Any, random: Any) -> None:
    x = net.given(random(3, 5), (-1, 5))
    layer = net.network.add_slice(x, (2, 0), (2, 5), (1, 1))
    layer.name = "crop"
    with pytest.raises(ExecutionError, match=r"crop: the SLICE layer .* reaches outside \[3, 5\]"):
        net.run(layer.get_output(0))


@given(st.integers(1, 6), st.integers(-7, 7), st.integers(1, 8), st.integers(-3, 3), st.sampled_from(["WRAP", "CLAMP"]))
@settings(max_examples=60, deadline=None)
def test_every_sampled_element_is_where_its_mode_puts_it(
    length: int, start: int, count: int, stride: int, mode: str
) -> None:
    x = torch.arange(length)
    places = [start + stride * index for index in range(count)]
    want = [place % length if mode == "WRAP" else min(max(place, 0), length - 1) for place in places]
    assert _sampled(x, [start], [count], [stride], mode, None).tolist() == want


def test_reverse_sequence_turns_only_the_first_elements(net: Any, random: Any) -> None:
    x = random(4, 3, 2)
    layer = net.network.add_reverse_sequence(net.given(x), net.given(torch.tensor([4, 1, 3], dtype=torch.int32)))
    want = x.clone()
    want[:4, 0], want[:3, 2] = x[:4, 0].flip(0), x[:3, 2].flip(0)
    assert_close(net.run(layer.get_output(0)), want)


def test_one_hot_ignores_indices_out_of_range(net: Any) -> None:
    layer = net.network.add_one_hot(
        net.given(torch.tensor([1, 5, 0], dtype=torch.int32)),
        net.constant(np.array([0.0, 2.0], np.float32)),
        net.constant(np.int32(3)),
        -1,
    )
    assert net.run(layer.get_output(0)).tolist() == [[0, 2, 0], [0, 0, 0], [2, 0, 0]]


def test_squeeze_and_unsqueeze_name_axes_from_both_ends(net: Any, random: Any) -> None:
    x = random(1, 3, 1, 2)
    squeezed = net.network.add_squeeze(net.given(x), net.constant(np.array([0, -2], np.int64))).get_output(0)
    layer = net.network.add_unsqueeze(squeezed, net.constant(np.array([-1, 0], np.int64)))
    assert_close(net.run(layer.get_output(0)), x.reshape(1, 3, 2, 1))


def test_padding_layer_pads_and_trims(net: Any, random: Any) -> None:
    x = random(1, 2, 4, 4)
    layer = net.network.add_padding_nd(net.given(x), (1, -1), (0, 2))
    assert_close(net.run(layer.get_output(0)), torch.nn.functional.pad(x[..., 1:], (0, 2, 1, 0)))


def test_a_false_assertion_names_its_message(net: Any) -> None:
    layer = net.network.add_assertion(net.given(torch.tensor([True, False])), "sizes must agree")
    layer.name = "check"
    with pytest.raises(ExecutionError, match="check: assertion failed: sizes must agree"):
        net.run(net.network.add_identity(net.given(torch.ones(1))).get_output(0))


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_linspace_adds_its_delta_along_each_axis(net: Any, dtype: str) -> None:
    trt_type = {"float32": net.trt.float32, "int32": net.trt.int32, "int64": net.trt.int64}[dtype]
    layer = net.network.add_fill((3, 4), net.trt.FillOperation.LINSPACE, trt_type)
    layer.set_input(1, net.constant(np.array(5, dtype)))
    layer.set_input(2, net.constant(np.array([10, 2], dtype)))
    want = 5 + 10 * np.arange(3).reshape(3, 1) + 2 * np.arange(4)
    assert_close(net.run(layer.get_output(0)), torch.from_numpy(want.astype(dtype)))


def test_random_fill_is_seeded_and_inside_its_limits(net: Any) -> None:
    layer = net.network.add_fill((1000,), net.trt.FillOperation.RANDOM_UNIFORM, net.trt.float32)
    layer.alpha, layer.beta = 2.0, 3.0
    executor = net.executor(layer.get_output(0))
    torch.manual_seed(1)
    (first,) = executor.run({}).values()
    torch.manual_seed(1)
    (again,) = executor.run({}).values()
    assert_close(first, again)
    assert 2.0 <= float(first.min()) < 2.1
    assert 2.9 < float(first.max()) <= 3.0


@pytest.mark.parametrize("is_computed", [False, True])
def test_a_ramp_that_would_fill_the_memory_is_refused_by_name(
    is_computed: bool, net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtkit.reference.layers.shape.MAX_BYTES", 1 << 20)
    count = 2**18 + 1
    sizes = () if is_computed else (count,)
    layer = net.network.add_fill(sizes, net.trt.FillOperation.LINSPACE, net.trt.float32)
    layer.name = "range"
    if is_computed:
        layer.set_input(0, net.given(torch.tensor([count])))
        layer.set_input(1, net.constant(np.float32(0)))
        layer.set_input(2, net.constant(np.array([1], np.float32)))
    with pytest.raises(ExecutionError) as caught:
        net.run(layer.get_output(0))
    assert str(caught.value) == (
        f"range: the FILL layer would make a tensor [{count}] of 0.0 GiB; "
        "the reference executor makes none above 0.0 GiB\n"
        "fix: check the sizes that the network's inputs give this layer"
    )


def test_a_ramp_of_four_thousand_million_is_refused(net: Any) -> None:
    layer = net.network.add_fill((4 * 10**9,), net.trt.FillOperation.LINSPACE, net.trt.float32)
    with pytest.raises(ExecutionError, match=r"would make a tensor \[4000000000\] of 14.9 GiB"):
        net.run(layer.get_output(0))
