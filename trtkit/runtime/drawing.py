"""Drawing of answers on their pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.runtime.tasks.answers import Classes, ClassMap, DepthMap, DetectedBoxes, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image, ImageDraw

    from trtkit.runtime.tasks.answers import Answer, Box

Colour = tuple[int, int, int]
# Okabe and Ito's colours, distinguishable by people with colour vision deficiency (jfly.uni-koeln.de/color).
_COLOURS: tuple[Colour, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167),
)  # fmt: skip
# Five colours of viridis (matplotlib), from low to high.
_VIRIDIS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)
_LEGEND = 8


def draw(picture: Image.Image, answer: Answer) -> Image.Image | None:
    """Return the picture with the answer on it; None for answers that cannot be shown, such as an embedding."""
    match answer:
        case DetectedBoxes():
            return _with_boxes(picture, answer)
        case ClassMap():
            return _with_map(picture, answer)
        case DepthMap():
            return _depth(answer)
        case Classes() | Text():
            return _with_lines(picture, str(answer).split(", ") if isinstance(answer, Classes) else [str(answer)])
        case _:
            return None


def _with_boxes(picture: Image.Image, answer: DetectedBoxes) -> Image.Image:
    from PIL import ImageDraw

    drawn = picture.copy()
    pen, width = ImageDraw.Draw(drawn), max(2, min(picture.size) // 200)
    for box in reversed(answer.boxes):  # the surest on top
        colour = _COLOURS[box.class_id % len(_COLOURS)]
        pen.rectangle(box.corners, outline=colour, width=width)
        _label(pen, box, colour, _size(picture))
        for x, y, score in box.keypoints:
            if score >= 0.5:
                pen.ellipse((x - 2 * width, y - 2 * width, x + 2 * width, y + 2 * width), fill=colour)
    return drawn


def with_two_sets_of_boxes(
    picture: Image.Image, boxes: Sequence[Box], others: Sequence[Box], scale: float
) -> Image.Image:
    """Return the picture with boxes in color and others as thin white lines.

    scale: of the picture, already downscaled.
    """
    from PIL import ImageDraw

    drawn = _with_boxes(picture, DetectedBoxes(tuple(_scaled(box, scale) for box in boxes)))
    pen = ImageDraw.Draw(drawn)
    for box in others:
        pen.rectangle(_scaled(box, scale).corners, outline="white")
    return drawn


def _scaled(box: Box, scale: float) -> Box:
    x1, y1, x2, y2 = (scale * value for value in box.corners)
    points = tuple((scale * x, scale * y, score) for x, y, score in box.keypoints)
    return replace(box, corners=(x1, y1, x2, y2), keypoints=points)


def _label(pen: ImageDraw.ImageDraw, box: Box, colour: Colour, size: int) -> None:
    """Draw name and score above a box, or inside it at the picture's top edge."""
    x, y = box.corners[0], max(0.0, box.corners[1] - size - 4)
    text, font = f"{box.name} {box.score:.2f}", _font(size)
    pen.rectangle((x, y, x + pen.textlength(text, font) + 6, y + size + 4), fill=colour)
    pen.text((x + 3, y + 1), text, fill="black", font=font)


def _with_map(picture: Image.Image, answer: ClassMap) -> Image.Image:
    """Return the picture half covered by the classes' colours, with a legend of the largest ones."""
    from PIL import Image

    palette = np.array(_COLOURS, np.uint8)
    mixed = Image.blend(picture, Image.fromarray(palette[answer.ids % len(palette)]), 0.5)
    shares = answer.shares()[:_LEGEND]
    lines = [f"{answer.name(number)} {share:.1%}" for number, share in shares]
    return _with_lines(mixed, lines, [_COLOURS[number % len(_COLOURS)] for number, _ in shares])


def _depth(answer: DepthMap) -> Image.Image:
    """Return the depths in colours, scaled from the smallest to the largest."""
    from PIL import Image

    low, high = float(answer.values.min()), float(answer.values.max())
    share = (answer.values - low) / ((high - low) or 1.0) * (len(_VIRIDIS) - 1)
    channels = [np.interp(share, range(len(_VIRIDIS)), _VIRIDIS[:, channel]) for channel in range(3)]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8))


def _with_lines(picture: Image.Image, lines: list[str], colours: list[Colour] | None = None) -> Image.Image:
    """Return the picture with lines of text in its top left corner."""
    from PIL import ImageDraw

    drawn, size = picture.copy(), _size(picture)
    pen, font = ImageDraw.Draw(drawn, "RGBA"), _font(size)
    width = max(pen.textlength(line, font) for line in lines) if lines else 0
    pen.rectangle((0, 0, width + size + 12, (size + 4) * len(lines) + 4), fill=(0, 0, 0, 160))
    for row, line in enumerate(lines):
        top = 2 + row * (size + 4)
        if colours:
            pen.rectangle((4, top + 2, size, top + size - 2), fill=colours[row])
        pen.text((size + 6 if colours else 6, top), line, fill="white", font=font)
    return drawn


def _size(picture: Image.Image) -> int:
    """Return a font size that is legible at the picture's size."""
    return max(12, min(picture.size) // 28)


def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)
