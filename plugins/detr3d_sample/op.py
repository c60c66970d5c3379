"""DETR3D feature sampling: attributes and output shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import BF16, FP16, FP32
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Refusal
from trtkit.network.lowering.sampling import FORMS

from .lowering import lower

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATS = (FP32, FP16, BF16)


@dataclass(frozen=True)
class Detr3dSampleAttributes:
    """image_height, image_width: of `lidar2img`'s images, in pixels. pc_range: minimum x, y, z, then maximum, in m."""

    image_height: int
    image_width: int
    pc_range: tuple[float, ...] = (-51.2, -51.2, -5.0, 51.2, 51.2, 3.0)


def infer(facts: Sequence[Fact | None], attributes: Detr3dSampleAttributes) -> list[Fact]:
    """Return [B, Q, C]. Raises Refusal if cameras, levels or channels do not match."""
    points, matrices, weights, *features = facts
    assert points is not None
    assert matrices is not None
    assert weights is not None
    if len(attributes.pc_range) != 6:
        raise Refusal(f"attribute `pc_range` is {list(attributes.pc_range)}: 6 numbers are allowed")
    if weights.shape[3] != len(features):
        raise Refusal(f"{weights.shape[3]} levels in `weights`, {len(features)} inputs `features`")
    cameras, channels = matrices.shape[1], features[0].shape[2] if features[0] else -1
    for level, feature in enumerate(features):
        assert feature is not None
        if -1 in (cameras, channels) or feature.shape[1:3] != (cameras, channels):
            raise Refusal(
                f"`features` {level} has shape {list(feature.shape)}: {cameras} cameras, {channels} channels wanted"
            )
    assert features[0] is not None
    return [Fact(features[0].dtype, (points.shape[0], points.shape[1], channels))]


OP = CustomOp(
    name="Detr3dSample",
    inputs=(
        Port("points", "B Q 3", (FP32,)),
        Port("lidar2img", "B N 4 4", (FP32,)),
        Port("weights", "B Q N L", _FLOATS),
        Port("features", "B N C H W", _FLOATS, is_variadic=True),
    ),
    outputs=(Port("y", "B Q C", _FLOATS),),
    attributes=Detr3dSampleAttributes,
    infer=infer,
    lower=lower,
    forms=FORMS,
)
