"""Non-maximum suppression (NMS) with outputs of fixed size: attributes, output shapes, and the node it replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import FP16, FP32, INT64
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Foreign, ForeignNode, Refusal, Replacement

from .lowering import FORMS, lower

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATS = (FP32, FP16)
_MOST_BOXES = 3840
"""The limit of TensorRT's TopK."""


@dataclass(frozen=True)
class NmsAttributes:
    """max_output_boxes: per class and image. is_centered: boxes are centre and size instead of two corners.

    score_threshold: scores must be above it.
    """

    max_output_boxes: int
    iou_threshold: float = 0.0
    score_threshold: float = -3.0e38
    is_centered: bool = False


def infer(facts: Sequence[Fact | None], attributes: NmsAttributes) -> list[Fact]:
    """Return rows (image, class, box) for the most boxes that can be selected, and their count."""
    scores = facts[1]
    assert scores is not None
    most = attributes.max_output_boxes
    if not 1 <= most <= _MOST_BOXES:
        raise Refusal(f"input 2 (`max_output_boxes_per_class`) is {most}, allowed: 1 to {_MOST_BOXES}")
    images, classes = scores.shape[:2]
    rows = -1 if -1 in (images, classes) else images * classes * most
    return [Fact(INT64, (rows, 3)), Fact(INT64, (1,))]


def _from_onnx(node: ForeignNode) -> Replacement:
    """Read NonMaxSuppression of opset 10 or 11; its limit and thresholds must be constants."""
    is_centered = bool(node.only("center_point_box", (0, 1), 0))
    node.check_all_read()
    if not node.input(2):
        raise Refusal("input 2 (`max_output_boxes_per_class`) is missing: then no box is ever selected")
    numbers = [
        node.constant(index, name).reshape(()).item() if node.input(index) else default
        for index, name, default in (
            (2, "max_output_boxes_per_class", 0),
            (3, "iou_threshold", 0.0),
            (4, "score_threshold", -3.0e38),
        )
    ]
    attributes = NmsAttributes(min(int(numbers[0]), _known_boxes(node)), numbers[1], numbers[2], is_centered)
    return Replacement(node.inputs[:2], attributes, (node.outputs[0], f"{node.outputs[0]}/count"))


def _known_boxes(node: ForeignNode) -> int:
    """Return the number of boxes, an upper limit of those that can be selected."""
    boxes = node.fact(0)
    size = -1 if boxes is None or len(boxes.shape) < 2 else boxes.shape[1]
    return size if size > 0 else 2**31


OP = CustomOp(
    name="Nms",
    inputs=(Port("boxes", "B S 4", _FLOATS), Port("scores", "B C S", _FLOATS)),
    outputs=(Port("selected", "B*C*max_output_boxes 3", (INT64,)), Port("count", "1", (INT64,))),
    attributes=NmsAttributes,
    infer=infer,
    lower=lower,
    forms=FORMS,
    foreign=(Foreign("", "NonMaxSuppression", _from_onnx),),
    is_padded=True,
)
