from __future__ import annotations

import pytest
import torch

from trtkit.dtypes import FP32
from trtkit.network.aot import load_kernels
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, ForeignNode, Refusal
from trtkit.network.plugin import refusal

torch.set_num_threads(1)
OP = find("EfficientNms")


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


@pytest.mark.parametrize("is_agnostic", [False, True])
def test_the_kernel_looks_at_pairs_in_blocks(monkeypatch: pytest.MonkeyPatch, is_agnostic: bool) -> None:
    kernels = load_kernels(OP, interpreted=True)
    monkeypatch.setattr(kernels, "MOST_AT_ONCE", 16)
    generator = torch.Generator().manual_seed(0)
    boxes, scores = torch.rand(2, 21, 4, generator=generator), torch.rand(2, 21, 2, generator=generator)
    scores[:, 8:14] = 0.75  # ties go to the lower box number, then to the lower class
    attributes = OP.attributes(15, 0.1, 0.3, is_class_agnostic=is_agnostic)
    wanted = OP.part("reference").reference([boxes, scores], attributes)
    for output, want in zip(kernels.launch([boxes, scores], attributes), wanted, strict=True):
        torch.testing.assert_close(output, want)


@pytest.mark.parametrize(
    ("most", "classes", "why"),
    [(100, 80, ""), (2000, 80, "2000 output boxes, its plugin takes 1024"),
     (100, 1203, "1203 classes, its plugin takes 1024")],
)  # fmt: skip
def test_what_its_plugin_takes(most: int, classes: int, why: str) -> None:
    facts = [Fact(FP32, (-1, 8400, 4)), Fact(FP32, (-1, 8400, classes))]
    assert refusal(OP, facts, OP.attributes(most)) == why
