"""NMS over all classes of an image, with padded outputs: attributes, output shapes, and the node it replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import FP16, FP32, INT32
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Foreign, ForeignNode, Refusal, Replacement

from .lowering import FORMS, lower

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATS = (FP32, FP16)
_MOST_BOXES = 3840
"""The limit of TensorRT's TopK."""


@dataclass(frozen=True)
class EfficientNmsAttributes:
    """max_output_boxes: per image. is_centered: boxes are centre and size instead of two corners.

    has_sigmoid: scores are logits. is_class_agnostic: boxes suppress those of other classes, too.
    """

    max_output_boxes: int = 100
    score_threshold: float = 0.25
    iou_threshold: float = 0.5
    is_centered: bool = False
    has_sigmoid: bool = False
    is_class_agnostic: bool = False


def infer(facts: Sequence[Fact | None], attributes: EfficientNmsAttributes) -> list[Fact]:
    """Return the count [B, 1], boxes [B, M, 4], scores [B, M] and classes [B, M]."""
    boxes, scores = facts
    assert boxes is not None
    assert scores is not None
    most = attributes.max_output_boxes
    if not 1 <= most <= _MOST_BOXES:
        raise Refusal(f"attribute `max_output_boxes` is {most}, allowed: 1 to {_MOST_BOXES}")
    if scores.shape[2] < 1:
        raise Refusal("input `scores` must have a known number of classes")
    images = scores.shape[0]
    return [
        Fact(INT32, (images, 1)),
        Fact(boxes.dtype, (images, most, 4)),
        Fact(scores.dtype, (images, most)),
        Fact(INT32, (images, most)),
    ]


def _from_tensorrt(node: ForeignNode) -> Replacement:
    """Read TensorRT's EfficientNMS_TRT: boxes [B, S, 4], scores [B, S, C]."""
    attributes = EfficientNmsAttributes(
        node.number("max_output_boxes", 100),
        node.number("score_threshold", 0.25),
        node.number("iou_threshold", 0.5),
        bool(node.only("box_coding", (0, 1), 0)),
        bool(node.only("score_activation", (0, 1), 0)),
        bool(node.only("class_agnostic", (0, 1), 0)),
    )
    node.only("background_class", (-1,), -1)
    node.ignore("plugin_version", "plugin_namespace")
    node.check_all_read()
    if node.input(2):
        raise Refusal("input 2 (`anchors`) is given, allowed: none", "decode the boxes in the model")
    return Replacement(node.inputs[:2], attributes, node.outputs)


OP = CustomOp(
    name="EfficientNms",
    inputs=(Port("boxes", "B S 4", _FLOATS), Port("scores", "B S C", _FLOATS)),
    outputs=(
        Port("count", "B 1", (INT32,)),
        Port("kept_boxes", "B M 4", _FLOATS),
        Port("kept_scores", "B M", _FLOATS),
        Port("kept_classes", "B M", (INT32,)),
    ),
    attributes=EfficientNmsAttributes,
    infer=infer,
    lower=lower,
    forms=FORMS,
    foreign=tuple(Foreign(domain, "EfficientNMS_TRT", _from_tensorrt) for domain in ("", "TRT")),
)
