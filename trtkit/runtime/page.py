"""Reading of text pages: line boxes from a detector's map, and their text from a recognizer's probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.config.strict import StrictModel
from trtkit.config.task import Preprocess
from trtkit.errors import BundleError
from trtkit.inputs.images import image_input
from trtkit.runtime.tasks import ctc_characters, ctc_scores, ctc_text
from trtkit.runtime.tasks.maps import text_boxes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from PIL import Image

    from trtkit.arrays import Array, WidthHeight
    from trtkit.bundle.bundle import Bundle

Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels."""


class PageReader(StrictModel):
    """Settings with which two networks read a page.

    characters: of the recognizer's probabilities, the blank first. widths: smallest and largest width of its input.
    """

    detector: Preprocess
    recognizer: Preprocess
    characters: tuple[str, ...]
    widths: tuple[int, int]

    def lines(self, page: Image.Image, boxes: Sequence[Box]) -> list[Array]:
        """Return the recognizer's input [1, 3, H, W] for each box of the page."""
        return [self._line(page.crop(box)) for box in boxes]

    def _line(self, line: Image.Image) -> Array:
        """Return a line as an input: compressed if it is too long, padded with grey if it is short."""
        low, high = self.widths
        pixels = image_input(line, self.recognizer)
        if pixels.shape[3] > high:
            width = max(1, high * line.height // pixels.shape[2])
            pixels = image_input(line.resize((width, line.height)), self.recognizer)
        missing = max(0, low - pixels.shape[3])
        return np.pad(pixels, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else pixels

    def answer(self, boxes: Sequence[Box], probabilities: Sequence[Array]) -> dict[str, Array]:
        """Return text [lines] as bytes, score [lines] and box [lines, 4]. probabilities: [1, steps, C] per line."""
        texts = [ctc_text(line, self.characters)[0].encode() for line in probabilities]
        scores = [ctc_scores(line)[0] for line in probabilities]
        return {
            "text": np.array(texts, dtype=np.object_),
            "score": np.array(scores, dtype=np.float32),
            "box": np.array(boxes, dtype=np.int32).reshape(len(boxes), 4),
        }


def page_reader(detector: Bundle, recognizer: Bundle) -> PageReader:
    """Return the settings with which two bundles read a page. Raises BundleError if one of them has the wrong task."""
    detecting, reading = detector.manifest, recognizer.manifest
    is_map = [len(record.shape) for record in detecting.outputs] == [4] and detecting.outputs[0].shape[1] == 1
    if detecting.config.preprocess is None or len(detecting.inputs) != 1 or not is_map:
        what = f"`{detecting.name}` is not a text detector: it has no output map [N, 1, H, W] of an image"
        raise BundleError(what, str(detector.path), "give one such as `ppocr-det`")
    is_text = reading.config.task is not None and reading.config.task.kind == "ctc-text"
    if reading.config.preprocess is None or len(reading.inputs) != 1 or not is_text:
        needed = "`preprocess:` or no `task: {kind: ctc-text}`"
        what = f"`{reading.name}` is not a text recognizer: its config has no {needed}"
        raise BundleError(what, str(recognizer.path), "give one such as `ppocr-rec`")
    return PageReader(
        detector=detecting.config.preprocess,
        recognizer=reading.config.preprocess,
        characters=tuple(ctc_characters(recognizer.onnx_path())),
        widths=_widths(recognizer),
    )


def read_page(
    reader: PageReader, page: Image.Image, detect: Callable[[Array], Array], recognize: Callable[[Array], Array]
) -> dict[str, Array]:
    """Return text, score and box of every line, top to bottom. detect, recognize: the networks."""
    boxes = find_lines(detect(image_input(page, reader.detector))[0, 0], page.size)
    return reader.answer(boxes, [recognize(line) for line in reader.lines(page, boxes)])


def find_lines(probability: Array, size: WidthHeight) -> list[Box]:
    """Return the boxes of text lines on a page, top to bottom and left to right.

    probability: of text, [H, W]. size: width and height of the page in pixels.
    """
    boxes: list[Box] = [tuple(map(round, box)) for box in text_boxes(probability, size).boxes.tolist()]
    return in_reading_order([box for box in boxes if box[0] < box[2] and box[1] < box[3]])


def in_reading_order(boxes: Sequence[Box]) -> list[Box]:
    """Sort boxes into rows; a box belongs to a row if its vertical middle lies within the row's first box."""
    rows: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: box[1]):
        middle = (box[1] + box[3]) / 2
        row = next((row for row in rows if row[0][1] < middle < row[0][3]), None)
        if row is None:
            rows.append(row := [])
        row.append(box)
    return [box for row in rows for box in sorted(row)]


def _widths(recognizer: Bundle) -> tuple[int, int]:
    """Return the smallest and largest width in the recognizer's profiles, or its fixed width."""
    manifest = recognizer.manifest
    shapes = [shape for profile in manifest.profiles for shape in profile.values()]
    width = manifest.inputs[0].shape[3]
    if not shapes:
        return width, width
    return min(shape.min[3] for shape in shapes), max(shape.max[3] for shape in shapes)
