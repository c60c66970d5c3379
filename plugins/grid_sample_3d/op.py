"""GridSample of volumes: attributes, output shapes, and the node it replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import BF16, FP16, FP32
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Foreign, ForeignNode, Refusal, Replacement

from .lowering import FORMS, lower

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATS = (FP32, FP16, BF16)
MODES = ("linear", "nearest")
PADDINGS = ("zeros", "border", "reflection")
# Axes of a volume, including batch and channels; images have 4.
_RANK = 5


@dataclass(frozen=True)
class GridSample3dAttributes:
    """mode: one of `MODES`. padding: one of `PADDINGS`. align_corners: -1 and 1 are centres of corners, not borders."""

    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False


def infer(facts: Sequence[Fact | None], attributes: GridSample3dAttributes) -> list[Fact]:
    """Return [N, C, Do, Ho, Wo]. Raises Refusal for unknown modes."""
    x, grid = facts
    assert x is not None
    assert grid is not None
    for name, value, allowed in (("mode", attributes.mode, MODES), ("padding", attributes.padding, PADDINGS)):
        if value not in allowed:
            raise Refusal(f"attribute `{name}` is `{value}`, allowed: {', '.join(f'`{v}`' for v in allowed)}")
    return [Fact(x.dtype, (*x.shape[:2], *grid.shape[1:4]))]


def _from_onnx(node: ForeignNode) -> Replacement | None:
    """Read GridSample of opset 20 or later; None for images, which TensorRT supports."""
    fact = node.fact(0) or node.fact(1)
    if fact is None or len(fact.shape) != _RANK:
        return None
    attributes = GridSample3dAttributes(
        node.only("mode", MODES, "linear"),
        node.only("padding_mode", PADDINGS, "zeros"),
        bool(node.number("align_corners", 0)),
    )
    node.check_all_read()
    return Replacement((node.input(0), node.input(1)), attributes, node.outputs)


OP = CustomOp(
    name="GridSample3d",
    inputs=(Port("x", "N C D H W", _FLOATS), Port("grid", "N Do Ho Wo 3", _FLOATS)),
    outputs=(Port("y", "N C Do Ho Wo", _FLOATS),),
    attributes=GridSample3dAttributes,
    infer=infer,
    lower=lower,
    forms=FORMS,
    foreign=(Foreign("", "GridSample", _from_onnx),),
)
