"""Test cases for RoI align."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.custom_op import Case, Native, Typical

from .op import RoiAlignAttributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray


def _maker(
    x: tuple[int, ...], boxes: int, reach: float, *, has_images: bool = True
) -> Callable[[np.random.Generator], Sequence[ndarray | None]]:
    """Return a function that makes images and boxes, which reach up to `reach` pixels outside when scaled by 1 / 4."""

    def make(generator: np.random.Generator) -> Sequence[ndarray | None]:
        size = np.array([x[3], x[2]]) * 4
        ends = generator.uniform(-4 * reach, 1.0, (boxes, 2, 2)) + generator.random((boxes, 2, 2)) * size
        rois = np.concatenate([ends.min(1), ends.max(1) + 1], 1)
        images = generator.integers(0, x[0], boxes)
        image = np.abs(generator.standard_normal(x)).astype(np.float32)
        if has_images:
            return [image, rois.astype(np.float32), images]
        return [image, np.concatenate([images[:, None], rois], 1).astype(np.float32), None]

    return make


def _native(attributes: RoiAlignAttributes) -> Native:
    """Return ONNX Runtime's node, of opset 16."""
    return Native(
        "",
        "RoiAlign",
        ("x", "rois", "images"),
        {
            "output_height": attributes.output_size[0],
            "output_width": attributes.output_size[1],
            "sampling_ratio": attributes.sampling_ratio,
            "spatial_scale": attributes.spatial_scale,
            "coordinate_transformation_mode": "half_pixel" if attributes.is_aligned else "output_half_pixel",
            "mode": "avg" if attributes.mode == "avg" else "max",
        },
    )


_FIXED = RoiAlignAttributes((3, 2), 2, 0.25)
_OLD = RoiAlignAttributes((2, 3), 3, 0.25, is_aligned=False)
_FREE = RoiAlignAttributes((2, 3), 0, 0.25)
_CORNERS = RoiAlignAttributes((2, 2), 2, 0.25, mode="max_corner")
_LARGEST = RoiAlignAttributes((2, 2), 2, 0.25, mode="max")
_FREE_LARGEST = RoiAlignAttributes((2, 2), 0, 0.25, mode="max")
_ALL = ("B", "H", "W", "R")
CASES = (
    Case("2 samples, all sizes dynamic", _FIXED, _maker((2, 5, 9, 11), 7, 0.0), _ALL, ("rois",), _native(_FIXED)),
    Case("not aligned, beyond the image", _OLD, _maker((2, 3, 8, 7), 6, 3.0), ("R",), ("rois",), _native(_OLD)),
    Case("samples by size, dynamic boxes", _FREE, _maker((1, 3, 9, 8), 6, 0.0), ("R",), ("rois",), _native(_FREE)),
    Case("largest corner", _CORNERS, _maker((2, 3, 6, 7), 5, 0.0), ("B", "R"), ("rois",), _native(_CORNERS)),
    Case("largest sample", _LARGEST, _maker((2, 3, 6, 7), 5, 0.0), (), ("rois",)),
    Case("largest sample by size", _FREE_LARGEST, _maker((1, 3, 6, 7), 5, 0.0), ("R",),
         ("rois",)),
    Case("boxes behind their image", _FIXED, _maker((2, 3, 6, 7), 5, 0.0, has_images=False), ("R",), ("rois",)),
)  # fmt: skip

TYPICAL = Typical(
    "Faster R-CNN's 1000 boxes, stride 4 of 800 x 1088",
    RoiAlignAttributes((7, 7), 2, 0.25, is_aligned=False),
    ((1, 256, 200, 272), (1000, 4), (1000,)),
)
