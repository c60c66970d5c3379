from __future__ import annotations

import pytest
import torch

from trtkit.dtypes import FP32, INT64
from trtkit.network.aot import load_kernels
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, ForeignNode, Refusal

torch.set_num_threads(1)
OP = find("RoiAlign2d")


def _node(op_type: str, opset: int = 16, **attributes: object) -> ForeignNode:
    names = ("x", "rois") if op_type.startswith("MMCV") else ("x", "rois", "images")
    return ForeignNode("n", op_type, names, ("y",), dict(attributes), [], [], opset)


def _convert(node: ForeignNode) -> object:
    foreign = {foreign.op_type: foreign for foreign in OP.foreign}
    replacement = foreign[node.op_type].convert(node)
    assert replacement is not None
    return replacement.attributes


@pytest.mark.parametrize(("opset", "is_aligned"), [(10, False), (16, True), (22, True)])
def test_the_default_place_of_boxes_follows_the_opset(opset: int, is_aligned: bool) -> None:
    assert _convert(_node("RoiAlign", opset)) == OP.attributes(is_aligned=is_aligned)


def test_mmcv_gives_boxes_behind_their_image() -> None:
    node = _node("MMCVRoiAlign", output_height=7, output_width=5, spatial_scale=0.5, sampling_ratio=2, aligned=0)
    assert _convert(node) == OP.attributes((7, 5), 2, 0.5, is_aligned=False)


@pytest.mark.parametrize(
    ("node", "what"),
    [
        (_node("RoiAlign", mode=b"sum"), "attribute `mode` is `sum`, allowed: `avg`, `max`"),
        (_node("MMCVRoiAlign", output_height=7), "attribute `output_width` is missing"),
        (_node("MMCVRoiAlign", output_height=7, output_width=7, pool=1),
         "unknown attribute `pool` = `1`, known: aligned, mode, output_height, output_width, sampling_ratio, "
         "spatial_scale"),
    ],
)  # fmt: skip
def test_a_node_that_cannot_be_taken_says_why(node: ForeignNode, what: str) -> None:
    with pytest.raises(Refusal) as refused:
        _convert(node)
    assert refused.value.what == what


def test_samples_by_size_need_the_image_size() -> None:
    facts = [Fact(FP32, (1, 3, -1, 8)), Fact(FP32, (5, 4)), Fact(INT64, (5,))]
    with pytest.raises(Refusal) as refused:
        OP.check(facts, OP.attributes())
    assert refused.value.what == "sampling_ratio 0 with an image of unknown size [1, 3, -1, 8]"
    assert OP.check(facts, OP.attributes(sampling_ratio=2)) == [Fact(FP32, (5, 3, 1, 1))]


def test_boxes_of_another_length_are_refused() -> None:
    facts = [Fact(FP32, (1, 3, 8, 8)), Fact(FP32, (5, 5)), Fact(INT64, (5,))]
    with pytest.raises(Refusal) as refused:
        OP.check(facts, OP.attributes())
    assert refused.value.what == "input `rois` has rows of 5 numbers, 4 wanted: x1, y1, x2, y2"


def test_the_kernel_reads_no_image_that_is_not_there() -> None:
    x, rois = torch.rand(2, 3, 6, 7), torch.tensor([[1.0, 1.0, 5.0, 5.0]] * 3)
    (output,) = load_kernels(OP, interpreted=True).launch([x, rois, torch.tensor([-1, 1, 2])], OP.attributes((2, 2), 2))
    assert (output[0] == 0).all()
    assert (output[1] != 0).all()
    assert (output[2] == 0).all()
