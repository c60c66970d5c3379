"""Pillar scatter: pillars' features on a bird's-eye-view grid. Attributes, output shapes, and the node it replaces."""

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


@dataclass(frozen=True)
class PillarScatterAttributes:
    """grid: (height, width) of the canvas, in cells. batch: number of point clouds."""

    grid: tuple[int, int]
    batch: int = 1


def infer(facts: Sequence[Fact | None], attributes: PillarScatterAttributes) -> list[Fact]:
    """Return [batch, C, height, width]."""
    features = facts[0]
    assert features is not None
    if features.shape[1] < 0:
        raise Refusal("input `features` must have a known number of channels")
    if min(*attributes.grid, attributes.batch) < 1:
        raise Refusal(f"a canvas of {attributes.batch} x {list(attributes.grid)} pillars, each must be 1 or more")
    return [Fact(features.dtype, (attributes.batch, features.shape[1], *attributes.grid))]


def _from_nvidia(node: ForeignNode) -> Replacement:
    """Read NVIDIA's PillarScatterPlugin: features [1, P, C], coordinates [1, P, 4], number of pillars."""
    grid = node.numbers("dense_shape", None, 2)
    node.ignore("plugin_version", "plugin_namespace")
    node.check_all_read()
    features = node.fact(0)
    if features is not None and len(features.shape) != 2:
        raise Refusal(
            f"input 0 has shape {list(features.shape)}, allowed: [pillars, channels]",
            "give all point clouds' pillars in one list, with the cloud's number as the first coordinate",
        )
    return Replacement(node.inputs[:3], PillarScatterAttributes((int(grid[0]), int(grid[1]))), node.outputs)


OP = CustomOp(
    name="PillarScatter",
    inputs=(
        Port("features", "P C", _FLOATS),
        Port("coordinates", "P 4", (INT32,)),
        Port("count", "1", (INT32,), is_optional=True),
    ),
    outputs=(Port("canvas", "B C H W", _FLOATS),),
    attributes=PillarScatterAttributes,
    infer=infer,
    lower=lower,
    forms=FORMS,
    foreign=(Foreign("", "PillarScatterPlugin", _from_nvidia),),
)
