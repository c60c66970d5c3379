"""Calls in which an input has no elements take views of views in one step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.reference import Executor, Options
from trtkit.reference.program import execute


def packed_heads(net: Any) -> tuple[Any, Any]:
    """Return two outputs: tokens [1, N, S, H] of `a` and `b` joined, taken apart and turned as attention needs them."""
    trt, network = net.trt, net.network
    a = net.given(torch.zeros(1, 3, 2, 4), (1, 3, -1, 4))
    b = net.given(torch.zeros(1, 3, 0, 4), (1, 3, -1, 4))
    joined = network.add_concatenation([a, b])
    joined.axis = 2
    tokens = joined.get_output(0)
    sliced = network.add_slice(tokens, (0, 0, 0, 0), (1, 3, 1, 4), (1, 1, 1, 1))
    sliced.set_input(2, network.add_shape(a).get_output(0))
    turned = network.add_shuffle(sliced.get_output(0))
    turned.second_transpose = (0, 2, 1, 3)
    flat = network.add_shuffle(turned.get_output(0))
    flat.reshape_dims = (0, 0, 12)
    again = network.add_concatenation([flat.get_output(0)])
    again.axis = 1
    last = network.add_shuffle(again.get_output(0))
    last.reshape_dims = (0, 0, 3, 4)
    relu = network.add_activation(last.get_output(0), trt.ActivationType.RELU).get_output(0)
    return last.get_output(0), relu


def test_views_of_views_give_what_each_would(net: Any, random: Any) -> None:
    last, relu = packed_heads(net)
    executor = net.executor(relu)
    names = executor.output_names
    for count in (1, 5, 1, 2):
        feed = {"input0": random(1, 3, count, 4), "input1": torch.zeros(1, 3, 0, 4)}
        kept = executor.run(feed, keep=[last.name])
        want = F.relu(feed["input0"].transpose(1, 2))
        torch.testing.assert_close(kept[names[0]], want)
        torch.testing.assert_close(executor.run(feed)[names[0]], want)
        strided = {**feed, "input0": feed["input0"].mT.contiguous().mT}
        torch.testing.assert_close(executor.run(strided)[names[0]], want)


def test_they_are_fewer_steps_and_leave_their_input_as_it_is(net: Any, random: Any) -> None:
    """The activation may overwrite only what is its own: not the input that the last view shares memory with."""
    _, relu = packed_heads(net)
    executor = Executor(net.executor(relu).layers, Options())
    x = random(1, 3, 1, 4)
    before = x.clone()
    values = list(executor._program.initial)
    for slot, value in zip(executor.layers.inputs, (x, torch.zeros(1, 3, 0, 4)), strict=True):
        values[slot] = value
    short = executor._program_for(values, executor.output_names)
    views = [step for step in short.steps if step.is_view]
    assert len(views) == 1 < sum(step.is_view for step in executor._program.steps)
    with torch.inference_mode():
        execute(short, values)
    assert torch.equal(x, before)
