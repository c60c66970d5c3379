"""Test cases for NMS with padded outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.custom_op import Case, Typical

from .op import EfficientNmsAttributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray


def _maker(
    images: int, boxes: int, classes: int, *, is_centered: bool = False
) -> Callable[[np.random.Generator], Sequence[ndarray | None]]:
    """Return a function that makes overlapping boxes in a unit square. No two scores are equal, even in fp16."""

    def make(generator: np.random.Generator) -> Sequence[ndarray | None]:
        centre, size = generator.random((images, boxes, 2)), generator.random((images, boxes, 2)) * 0.4 + 0.1
        parts = [centre, size] if is_centered else [centre - size / 2, centre + size / 2]
        scores = np.stack([generator.permutation(1024)[: boxes * classes] for _ in range(images)]) / np.float32(1024)
        ends = np.round(np.concatenate(parts, -1) * 512).astype(np.float32) / 512
        return [ends, scores.reshape(images, boxes, classes).astype(np.float32)]

    return make


CASES = (
    Case("3 classes, dynamic sizes", EfficientNmsAttributes(7, 0.2, 0.3), _maker(2, 40, 3), ("B", "S")),
    Case("across classes", EfficientNmsAttributes(6, 0.1, 0.3, is_class_agnostic=True), _maker(2, 30, 4), ("B",)),
    Case("logits, centres, more outputs than boxes", EfficientNmsAttributes(30, 0.6, 0.4, True, True),
         _maker(1, 20, 2, is_centered=True)),
)  # fmt: skip

TYPICAL = Typical(
    "80 classes of 8400 boxes, YOLOv8 at 640 x 640", EfficientNmsAttributes(), ((1, 8400, 4), (1, 8400, 80))
)
