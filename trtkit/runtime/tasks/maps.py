"""Pixel maps: the class or the depth of each pixel, or boxes around lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.tasks.boxes import Detections

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.arrays import Array, WidthHeight
    from trtkit.inputs.images import PicturePlacement

# Limit on pixels times channels in memory at a time.
_AT_ONCE = 1 << 25


def class_map(logits: Array, placed: PicturePlacement, size: WidthHeight) -> Array:
    """Return the most likely class [H, W] of each picture pixel, by bilinear interpolation of logits [C, h, w].

    size: (width, height) of the input.
    """
    return _sampled(logits, placed, size, lambda values: values.argmax(0).astype(np.int32))


def depth_map(values: Array, placed: PicturePlacement, size: WidthHeight) -> Array:
    """Return the value [H, W] of each picture pixel, by bilinear interpolation of values [h, w]."""
    return _sampled(values[None], placed, size, lambda sampled: sampled[0])


def _sampled(values: Array, placed: PicturePlacement, size: WidthHeight, read: Callable[[Array], Array]) -> Array:
    """Return `read` of the values [C, h, w] sampled at every picture pixel, computed in blocks of rows."""
    import torch
    from torch.nn.functional import grid_sample

    maps = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))[None]
    across, down = (_centers(placed, size, axis) for axis in range(2))
    step = max(1, _AT_ONCE // (len(across) * len(values)))
    parts = []
    for first in range(0, len(down), step):
        rows = down[first : first + step]
        grid = torch.from_numpy(np.stack(np.meshgrid(across, rows), -1).astype(np.float32))[None]
        sampled = grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False)
        parts.append(read(sampled[0].numpy()))
    return np.concatenate(parts)


def _centers(placed: PicturePlacement, size: WidthHeight, axis: int) -> Array:
    """Return the centers of the picture's pixels in input coordinates, in grid_sample's units of -1 to 1."""
    centers = np.arange(placed.size[axis]) + 0.5
    return np.asarray((centers * placed.scale[axis] + placed.offset[axis]) / size[axis] * 2 - 1)


# The detector marks the core of a line; its text extends about half the core's height beyond it on every side.
MARGIN = 0.5
THRESHOLD = 0.3
SMALLEST_HEIGHT = 4


def text_boxes(probability: Array, size: WidthHeight) -> Detections:
    """Return the boxes of text lines, top to bottom, scored by the mean probability of their cores.

    probability: of text, [h, w]. size: (width, height) of the image that the map covers, in the pixels used for boxes.

    Source: DBNet, arXiv:1911.08947. Boxes are upright rectangles around connected regions, not DBNet's polygons.
    """
    from scipy import ndimage

    labels, _ = ndimage.label(probability > THRESHOLD)
    regions = [
        (number, rows, columns)
        for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1)
        if rows.stop - rows.start >= SMALLEST_HEIGHT
    ]
    scale = np.array(size) / probability.shape[::-1]
    boxes = np.array([_grown(rows, columns) for _, rows, columns in regions], np.float64).reshape(-1, 2, 2) * scale
    scores = [
        float(probability[rows, columns][labels[rows, columns] == number].mean()) for number, rows, columns in regions
    ]
    count = len(regions)
    return Detections(
        boxes.clip(0, size).reshape(-1, 4),
        np.array(scores, np.float64),
        np.zeros(count, np.int64),
        np.zeros((count, 0)),
    )


def _grown(rows: slice, columns: slice) -> tuple[float, float, float, float]:
    """Return a region of the map with its margin."""
    margin = MARGIN * (rows.stop - rows.start)
    return columns.start - margin, rows.start - margin, columns.stop + margin, rows.stop + margin
