"""Read the text on a page: PP-OCR's detector and recognizer from their bundles.

python examples/ocr/read_page.py page.png --det bundles/ppocr-det --rec bundles/ppocr-rec
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy import ndimage

from trtkit.runtime.images import image_input, read_image
from trtkit.runtime.model import Model, open_model
from trtkit.runtime.tasks import ctc_characters, ctc_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from PIL import Image

Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels."""

# The detector marks the core of a line; text reaches about half of its height beyond it on every side.
MARGIN = 0.5
THRESHOLD = 0.3
SMALLEST_HEIGHT = 4


def find_lines(detector: Model, image: Image.Image) -> list[Box]:
    """Return the boxes of text lines, from top to bottom and from left to right."""
    probability = detector(prepared(detector, image))[0, 0]
    regions, _ = ndimage.label(probability > THRESHOLD)
    scale = image.width / probability.shape[1], image.height / probability.shape[0]
    boxes = [
        grown(rows, columns, scale, image)
        for rows, columns in ndimage.find_objects(regions)
        if rows.stop - rows.start >= SMALLEST_HEIGHT
    ]
    return in_reading_order(boxes)


def grown(rows: slice, columns: slice, scale: tuple[float, float], image: Image.Image) -> Box:
    """Return a region of the probability map as a box in the image, with a margin."""
    margin = MARGIN * (rows.stop - rows.start)
    left, right = (columns.start - margin) * scale[0], (columns.stop + margin) * scale[0]
    top, bottom = (rows.start - margin) * scale[1], (rows.stop + margin) * scale[1]
    return max(0, round(left)), max(0, round(top)), min(image.width, round(right)), min(image.height, round(bottom))


def in_reading_order(boxes: Sequence[Box]) -> list[Box]:
    """Sort boxes into rows, where a box whose middle lies within the row's first box belongs to it."""
    rows: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: box[1]):
        middle = (box[1] + box[3]) / 2
        row = next((row for row in rows if row[0][1] < middle < row[0][3]), None)
        if row is None:
            rows.append(row := [])
        row.append(box)
    return [box for row in rows for box in sorted(row)]


def prepared(model: Model, image: Image.Image) -> np.ndarray[Any, Any]:
    """Return the image as the model's config says."""
    preprocess = model.bundle.manifest.config.preprocess
    assert preprocess is not None
    return image_input(image, preprocess)


def read_page(image: Image.Image, detector: Model, recognizer: Model) -> list[str]:
    """Return the text of every line."""
    characters = ctc_characters(recognizer.bundle.onnx_path)
    lines = [image.crop(box) for box in find_lines(detector, image)]
    return [ctc_text(recognizer(prepared(recognizer, line)), characters)[0] for line in lines]


def main() -> None:
    """Print the text of an image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", type=Path)
    parser.add_argument("--det", type=Path, required=True, help="bundle of the detector")
    parser.add_argument("--rec", type=Path, required=True, help="bundle of the recognizer")
    parser.add_argument("--runtime", choices=["reference", "onnxruntime"], default="reference")
    options = parser.parse_args()
    models = (open_model(path, options.runtime) for path in (options.det, options.rec))
    print("\n".join(read_page(read_image(options.image), *models)))


if __name__ == "__main__":
    main()
