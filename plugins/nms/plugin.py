"""NMS as a TensorRT plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.foreign import Refusal
from trtkit.network.plugin import Plugin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.foreign import Fact

    from .op import NmsAttributes

MOST_ROWS = 32768
"""More rows keep the lowering: it selects one box of every class at a time, the kernel's single program one box."""


def _limits(facts: Sequence[Fact], attributes: NmsAttributes) -> None:
    """Raise Refusal for more rows than one program should select; a dynamic batch counts as one image."""
    images, classes = (max(size, 1) for size in facts[1].shape[:2])
    rows = images * classes * attributes.max_output_boxes
    if rows > MOST_ROWS:
        raise Refusal(f"{rows} rows may be selected, its plugin takes {MOST_ROWS}")


_DATA = "FP32|FP16"
PLUGIN = Plugin(
    inputs=("boxes", "scores"),
    types=(_DATA, _DATA, "INT64", "INT64"),
    data=0,
    shapes=lambda shapes, attributes: [[shapes[1][0] * shapes[1][1] * attributes.max_output_boxes, 3], [1]],
    limits=_limits,
)
