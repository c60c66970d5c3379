"""Test cases for NMS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.custom_op import Case, Typical

from .op import NmsAttributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray


def _maker(
    images: int, classes: int, boxes: int, *, is_centered: bool = False
) -> Callable[[np.random.Generator], Sequence[ndarray | None]]:
    """Return a function that makes overlapping boxes in a unit square, with scores of n/1024, exact in fp16."""

    def make(generator: np.random.Generator) -> Sequence[ndarray | None]:
        centre, size = generator.random((images, boxes, 2)), generator.random((images, boxes, 2)) * 0.4 + 0.1
        parts = [centre, size] if is_centered else [centre - size / 2, centre + size / 2]
        scores = np.stack(
            [[generator.permutation(1024)[:boxes] for _ in range(classes)] for _ in range(images)]
        ).astype(np.float32)
        return [np.round(np.concatenate(parts, -1) * 512).astype(np.float32) / 512, scores / 1024]

    return make


_SIZES = ("B", "S")
CASES = (
    Case("3 classes, dynamic sizes", NmsAttributes(5, 0.3, 0.2), _maker(2, 3, 40), _SIZES),
    Case("more outputs than boxes are left", NmsAttributes(12, 0.05), _maker(1, 2, 12)),
    Case("centres and sizes, dynamic batch", NmsAttributes(4, 0.5, 0.5, True), _maker(2, 1, 33, is_centered=True),
         ("B",)),
    Case("no score is high enough", NmsAttributes(4, 0.5, 2.0), _maker(1, 2, 9), ("B",)),
)  # fmt: skip

TYPICAL = Typical(
    "80 classes of 8400 boxes, YOLOv8 at 640 x 640", NmsAttributes(100, 0.45, 0.25), ((1, 8400, 4), (1, 80, 8400))
)
