from __future__ import annotations

import pytest
import torch

from trtkit.backends import load_backend
from trtkit.dtypes import FP32
from trtkit.network.custom_op import Fact, find
from trtkit.network.foreign import ForeignNode, Refusal
from trtkit.verify.custom_ops.check import outcomes
from trtkit.verify.custom_ops.routes import build, network_of
from trtkit.verify.custom_ops.trial import Trial, trials

torch.set_num_threads(1)
OP = find("EfficientNms")
BACKEND = load_backend("tensorrt_rtx")


@pytest.mark.parametrize("trial", trials(OP), ids=str)
def test_every_implementation_matches_the_reference(trial: Trial) -> None:
    assert [outcome for outcome in outcomes(BACKEND, trial) if not outcome.is_within] == []


@pytest.mark.parametrize("trial", trials(OP), ids=str)
def test_tensorrt_builds_it(trial: Trial) -> None:
    assert build(network_of(BACKEND, trial, OP.forms[0]), trial) > 0


def _node(inputs: tuple[str, ...] = ("boxes", "scores"), **attributes: object) -> ForeignNode:
    return ForeignNode("n", "EfficientNMS_TRT", inputs, ("n", "b", "s", "c"), dict(attributes), [], [], 17)


def test_tensorrts_node() -> None:
    node = _node(max_output_boxes=50, iou_threshold=0.6, score_threshold=0.1, box_coding=1, score_activation=1,
                 class_agnostic=0, background_class=-1, plugin_version=b"1")  # fmt: skip
    replacement = OP.foreign[0].convert(node)
    assert replacement is not None
    assert replacement.attributes == OP.attributes(50, 0.1, 0.6, True, True)


@pytest.mark.parametrize(
    ("node", "what"),
    [
        (_node(background_class=0), "attribute `background_class` is `0`, allowed: `-1`"),
        (_node(box_coding=3), "attribute `box_coding` is `3`, allowed: `0`, `1`"),
        (_node(("boxes", "scores", "anchors")), "input 2 (`anchors`) is given, allowed: none"),
    ],
)
def test_a_node_that_cannot_be_taken_says_why(node: ForeignNode, what: str) -> None:
    with pytest.raises(Refusal) as refused:
        OP.foreign[0].convert(node)
    assert refused.value.what == what


@pytest.mark.parametrize(
    ("most", "classes", "what"),
    [
        (4000, 3, "attribute `max_output_boxes` is 4000, allowed: 1 to 3840"),
        (10, -1, "input `scores` must have a known number of classes"),
    ],
)
def test_inputs_that_do_not_fit_say_why(most: int, classes: int, what: str) -> None:
    with pytest.raises(Refusal) as refused:
        OP.check([Fact(FP32, (1, 9, 4)), Fact(FP32, (1, 9, classes))], OP.attributes(most))
    assert refused.value.what == what
