"""Read a text detector's map of probabilities as boxes around lines of text.

Source: DBNet, arXiv:1911.08947. Boxes are upright rectangles around connected regions, not DBNet's polygons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.tasks.boxes import Detections

if TYPE_CHECKING:
    from trtkit.arrays import Array, WidthHeight

# The detector marks the core of a line; text reaches about half of its height beyond it on every side.
MARGIN = 0.5
THRESHOLD = 0.3
SMALLEST_HEIGHT = 4


def text_boxes(probability: Array, size: WidthHeight) -> Detections:
    """Return the boxes of text lines, from top to bottom, scored by the mean probability of their cores.

    probability: of text, [h, w]. size: (width, height) of the image that the map covers, in pixels of which boxes are.
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
