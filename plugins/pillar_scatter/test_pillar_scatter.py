from __future__ import annotations

import pytest
import torch

from trtkit.dtypes import FP32, INT32
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, ForeignNode, Refusal

torch.set_num_threads(1)
OP = find("PillarScatter")


def _node(rank: int = 2, **attributes: object) -> ForeignNode:
    facts = [Fact(FP32, (1,) * rank), Fact(INT32, (1,) * rank), Fact(INT32, (1,))]
    names = ("features", "coordinates", "count")
    return ForeignNode("n", "PillarScatterPlugin", names, ("y",), dict(attributes), facts, [None] * 3, 17)


def test_nvidias_node() -> None:
    replacement = OP.foreign[0].convert(_node(dense_shape=[496, 432], plugin_version=b"1"))
    assert replacement is not None
    assert replacement.attributes == OP.attributes((496, 432))
    assert replacement.inputs == ("features", "coordinates", "count")


@pytest.mark.parametrize(
    ("node", "what"),
    [
        (_node(), "attribute `dense_shape` is missing"),
        (_node(dense_shape=[1, 2, 3]), "attribute `dense_shape` is [1, 2, 3]: 2 numbers are allowed"),
        (_node(3, dense_shape=[4, 4]), "input 0 has shape [1, 1, 1], allowed: [pillars, channels]"),
    ],
)
def test_a_node_that_cannot_be_taken_says_why(node: ForeignNode, what: str) -> None:
    with pytest.raises(Refusal) as refused:
        OP.foreign[0].convert(node)
    assert refused.value.what == what


@pytest.mark.parametrize(
    ("channels", "grid", "what"),
    [
        (-1, (4, 4), "input `features` must have a known number of channels"),
        (3, (4, 0), "a canvas of 1 x [4, 0] pillars, each must be 1 or more"),
    ],
)
def test_inputs_that_do_not_fit_say_why(channels: int, grid: tuple[int, int], what: str) -> None:
    with pytest.raises(Refusal) as refused:
        OP.check([Fact(FP32, (-1, channels)), Fact(INT32, (-1, 4))], OP.attributes(grid))
    assert refused.value.what == what
