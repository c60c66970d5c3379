"""Multi-scale deformable attention: attributes, output shapes, and the node it replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import BF16, FP16, FP32
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Foreign, ForeignNode, Refusal, Replacement
from trtkit.network.lowering.sampling import FORMS

from .lowering import lower

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATS = (FP32, FP16, BF16)


@dataclass(frozen=True)
class MsDeformAttnAttributes:
    """spatial_shapes: height and width of each level, as one flat tuple."""

    spatial_shapes: tuple[int, ...]

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Return (height, width) of each level."""
        return tuple(zip(self.spatial_shapes[::2], self.spatial_shapes[1::2], strict=True))

    def length(self) -> int:
        """Return the number of positions of all levels together."""
        return sum(height * width for height, width in self.sizes())


def infer(facts: Sequence[Fact | None], attributes: MsDeformAttnAttributes) -> list[Fact]:
    """Return [B, Q, M * D]. Raises Refusal if levels do not match."""
    value, locations, weights = facts
    assert value is not None
    assert locations is not None
    assert weights is not None
    _, length, heads, size = value.shape
    if length not in (-1, attributes.length()):
        raise Refusal(f"{length} elements of `value`, {attributes.length()} wanted: those of all levels")
    levels = len(attributes.sizes())
    if weights.shape[3] != levels or -1 in (heads, size, *weights.shape[3:]):
        raise Refusal(f"`weights` of shape {list(weights.shape)}: {levels} levels and a known number of points wanted")
    return [Fact(value.dtype, (value.shape[0], weights.shape[1], heads * size))]


def _from_mmcv(node: ForeignNode) -> Replacement:
    """Read mmcv's node: value, spatial shapes, level starts, locations, weights."""
    shapes = node.constant(1, "value_spatial_shapes")
    node.ignore("im2col_step", "plugin_version", "plugin_namespace")
    node.check_all_read()
    attributes = MsDeformAttnAttributes(tuple(int(size) for size in shapes.reshape(-1)))
    return Replacement((node.input(0), node.input(3), node.input(4)), attributes, node.outputs)


OP = CustomOp(
    name="MsDeformAttn",
    inputs=(
        Port("value", "B S M D", _FLOATS),
        Port("locations", "B Q M L P 2", _FLOATS),
        Port("weights", "B Q M L P", _FLOATS),
    ),
    outputs=(Port("y", "B Q M*D", _FLOATS),),
    attributes=MsDeformAttnAttributes,
    infer=infer,
    lower=lower,
    forms=FORMS,
    foreign=(
        Foreign("mmcv", "MMCVMultiScaleDeformableAttention", _from_mmcv),
        Foreign("mmdeploy", "MMCVMultiScaleDeformableAttention", _from_mmcv),
        Foreign("", "MultiscaleDeformableAttnPlugin_TRT", _from_mmcv),
    ),
)
