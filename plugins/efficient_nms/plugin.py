"""NMS with padded outputs as a TensorRT plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.foreign import Refusal
from trtkit.network.plugin import Plugin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.foreign import Fact

    from .op import EfficientNmsAttributes

MOST = 1024
"""Most selected boxes, which one program selects in sequence, and most classes, whose best pairs are in registers."""


def _limits(facts: Sequence[Fact], attributes: EfficientNmsAttributes) -> None:
    for count, name in ((attributes.max_output_boxes, "output boxes"), (facts[1].shape[2], "classes")):
        if count > MOST:
            raise Refusal(f"{count} {name}, its plugin takes {MOST}")


_DATA = "FP32|FP16"
PLUGIN = Plugin(
    inputs=("boxes", "scores"),
    types=(_DATA, _DATA, "INT32", _DATA, _DATA, "INT32"),
    data=0,
    shapes=lambda shapes, attributes: [
        [shapes[1][0], 1],
        [shapes[1][0], attributes.max_output_boxes, 4],
        [shapes[1][0], attributes.max_output_boxes],
        [shapes[1][0], attributes.max_output_boxes],
    ],
    limits=_limits,
)
