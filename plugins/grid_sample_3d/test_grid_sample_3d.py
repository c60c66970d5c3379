from __future__ import annotations

from itertools import product

import pytest
import torch

from trtkit.dtypes import FP32
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, ForeignNode, Refusal

torch.set_num_threads(1)
OP = find("GridSample3d")


@pytest.mark.parametrize(
    ("mode", "padding", "aligned"),
    product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True)),
)
def test_the_reference_is_what_torch_computes(mode: str, padding: str, aligned: bool) -> None:
    x, grid = torch.randn(2, 3, 4, 5, 6).double(), torch.rand(2, 3, 7, 5, 3).double() * 3 - 1.5
    want = torch.nn.functional.grid_sample(x, grid, mode, padding, aligned)
    attributes = OP.attributes("linear" if mode == "bilinear" else mode, padding, aligned)
    torch.testing.assert_close(OP.part("reference").reference([x, grid], attributes)[0], want)


def _node(rank: int, **attributes: object) -> ForeignNode:
    facts = [Fact(FP32, (1,) * rank), Fact(FP32, (1,) * rank)]
    return ForeignNode("n", "GridSample", ("x", "grid"), ("y",), dict(attributes), facts, [None, None], 20)


def test_a_node_that_samples_images_stays() -> None:
    assert OP.foreign[0].convert(_node(4, mode=b"cubic")) is None


def test_a_volume_cannot_be_sampled_by_cubics() -> None:
    with pytest.raises(Refusal) as refused:
        OP.foreign[0].convert(_node(5, mode=b"cubic"))
    assert refused.value.what == "attribute `mode` is `cubic`, allowed: `linear`, `nearest`"


def test_an_unknown_padding_is_refused() -> None:
    facts = [Fact(FP32, (1, 1, 2, 2, 2)), Fact(FP32, (1, 2, 2, 2, 3))]
    with pytest.raises(Refusal) as refused:
        OP.check(facts, OP.attributes(padding="wrap"))
    assert refused.value.what == "attribute `padding` is `wrap`, allowed: `zeros`, `border`, `reflection`"
