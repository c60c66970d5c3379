"""Fourier features of a point (NeRF, https://arxiv.org/abs/2003.08934, eq. 4), as `acme::FourierFeatures`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import FP16, FP32
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Foreign, ForeignNode, Refusal, Replacement

from .lowering import lower

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class FourierFeatures:
    """bands: number of frequencies, each twice the previous one."""

    bands: int = 4


def infer(facts: Sequence[Fact | None], attributes: FourierFeatures) -> list[Fact]:
    """Return [N, C (1 + 2 bands)]."""
    x = facts[0]
    assert x is not None
    if attributes.bands < 1:
        raise Refusal(f"{attributes.bands} bands, 1 is the least")
    if x.shape[1] < 0:
        raise Refusal("input `x` must have a known number of coordinates")
    return [Fact(x.dtype, (x.shape[0], x.shape[1] * (1 + 2 * attributes.bands)))]


def convert(node: ForeignNode) -> Replacement:
    """Read the exporter's node. Unknown attributes are errors."""
    attributes = FourierFeatures(int(node.number("bands", 4)))
    node.check_all_read()
    return Replacement((node.input(0),), attributes, node.outputs)


OP = CustomOp(
    name="FourierFeatures",
    inputs=(Port("x", "N C", (FP32, FP16)),),
    outputs=(Port("y", "N D", (FP32, FP16)),),
    attributes=FourierFeatures,
    infer=infer,
    lower=lower,
    forms=("native",),
    foreign=(Foreign("acme", "FourierFeatures", convert),),
)
