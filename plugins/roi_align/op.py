"""RoI align: features of boxes by bilinear sampling. Attributes, output shapes, and the nodes it replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import BF16, FP16, FP32, INT32, INT64
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Foreign, ForeignNode, Refusal, Replacement
from trtkit.network.lowering.sampling import FORMS

from .lowering import lower

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATS = (FP32, FP16, BF16)


@dataclass(frozen=True)
class RoiAlignAttributes:
    """output_size: (height, width). sampling_ratio: samples per bin along each axis; 0: one per pixel, rounded up.

    is_aligned: shifts boxes by half a pixel, so that integers are pixels' centres; otherwise boxes are at least a pixel
    large.
    mode: `avg` or `max` of the samples; `max_corner`: of the samples' weighted corners, which is how ONNX Runtime and
    ONNX's tests compute `max`.
    """

    output_size: tuple[int, int] = (1, 1)
    sampling_ratio: int = 0
    spatial_scale: float = 1.0
    is_aligned: bool = True
    mode: str = "avg"


def infer(facts: Sequence[Fact | None], attributes: RoiAlignAttributes) -> list[Fact]:
    """Return [R, C, output height, output width]."""
    x, rois, images = facts
    assert x is not None
    assert rois is not None
    width = 5 if images is None else 4
    if rois.shape[1] not in {-1, width}:
        what = "image, x1, y1, x2, y2" if images is None else "x1, y1, x2, y2"
        raise Refusal(f"input `rois` has rows of {rois.shape[1]} numbers, {width} wanted: {what}")
    if attributes.sampling_ratio == 0 and -1 in x.shape[2:]:
        raise Refusal(
            f"sampling_ratio 0 with an image of unknown size {list(x.shape)}",
            "export the model with a sampling ratio, or with fixed height and width",
        )
    return [Fact(x.dtype, (rois.shape[0], x.shape[1], *attributes.output_size))]


def _from_onnx(node: ForeignNode) -> Replacement:
    """Read RoiAlign of opset 10, 16 or 22: images, boxes, image number of each box."""
    size = (node.number("output_height", 1), node.number("output_width", 1))
    ratio, scale = node.number("sampling_ratio", 0), node.number("spatial_scale", 1.0)
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    mapping = node.only("coordinate_transformation_mode", ("half_pixel", "output_half_pixel"), default)
    mode = node.only("mode", ("avg", "max"), "avg")
    node.check_all_read()
    mode = "max_corner" if mode == "max" else mode
    attributes = RoiAlignAttributes(size, ratio, scale, mapping == "half_pixel", mode)
    return Replacement(node.inputs, attributes, node.outputs)


def _from_mmcv(node: ForeignNode) -> Replacement:
    """Read mmcv's node: images, and boxes that begin with their image number."""
    size = (node.number("output_height"), node.number("output_width"))
    ratio, scale = node.number("sampling_ratio", 0), node.number("spatial_scale", 1.0)
    mode, is_aligned = node.only("mode", ("avg", "max"), "avg"), bool(node.only("aligned", (0, 1), 1))
    node.check_all_read()
    attributes = RoiAlignAttributes(size, ratio, scale, is_aligned, mode)
    return Replacement((*node.inputs, ""), attributes, node.outputs)


OP = CustomOp(
    name="RoiAlign2d",
    inputs=(
        Port("x", "B C H W", _FLOATS),
        Port("rois", "R 4|5", _FLOATS),
        Port("images", "R", (INT32, INT64), is_optional=True),
    ),
    outputs=(Port("y", "R C Ho Wo", _FLOATS),),
    attributes=RoiAlignAttributes,
    infer=infer,
    lower=lower,
    forms=FORMS,
    foreign=(Foreign("", "RoiAlign", _from_onnx), Foreign("mmcv", "MMCVRoiAlign", _from_mmcv)),
)
