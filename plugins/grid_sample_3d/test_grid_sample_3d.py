from __future__ import annotations

from itertools import product

import pytest
import torch

from trtkit.backends import load_backend
from trtkit.dtypes import FP32
from trtkit.network.custom_op import Fact, find
from trtkit.network.foreign import ForeignNode, Refusal
from trtkit.verify.custom_ops.check import outcomes
from trtkit.verify.custom_ops.routes import build, network_of, parsed_function
from trtkit.verify.custom_ops.trial import Trial, trials

torch.set_num_threads(1)
OP = find("GridSample3d")
BACKEND = load_backend("tensorrt_rtx")


@pytest.mark.parametrize("trial", trials(OP), ids=str)
def test_every_implementation_matches_the_reference(trial: Trial) -> None:
    assert [outcome for outcome in outcomes(BACKEND, trial) if not outcome.is_within] == []


@pytest.mark.parametrize("form", OP.forms)
@pytest.mark.parametrize("trial", trials(OP, ("fp16",)), ids=str)
def test_tensorrt_builds_it(trial: Trial, form: str) -> None:
    assert build(network_of(BACKEND, trial, form), trial) > 0
    assert build(parsed_function(BACKEND, trial, form), trial) > 0


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
