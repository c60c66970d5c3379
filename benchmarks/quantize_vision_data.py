"""Photographs and lines of text for calibrating vision models, and others for evaluating them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from trtkit.inputs.images import read_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CALIBRATION = (
    "astronaut.png", "camera.png", "clock_motion.png", "coins.png", "grass.png", "hubble_deep_field.jpg", "ihc.png",
    "moon.png", "page.png", "retina.jpg",
)  # fmt: skip
MEASURED = ("chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg", "gravel.png")
"""From scikit-image; CALIBRATION has none of them, nor another view of the same scene."""
WORDS = (
    "The quick brown fox jumps over the lazy dog", "Segmentation of regions by markers", "Figure 12: results in %",
    "Total 1,284.50 EUR on 2026-11-21", "Let x be an image of size 640 by 480", "Watershed (from the gradient)",
    "Sphinx of black quartz, judge my vow", "edge-based approach; see [3]", "INVOICE No. 70031", "Abstract. We show",
)  # fmt: skip


def photograph(name: str) -> Image.Image:
    """Return an image of scikit-image."""
    spec = find_spec("skimage")
    assert spec is not None
    assert spec.submodule_search_locations
    return read_image(Path(next(iter(spec.submodule_search_locations))) / "data" / name)


def views(names: Sequence[str], count: int) -> Iterator[Image.Image]:
    """Yield `count` views of each photograph: whole, then squares at its corners and centre, plain and mirrored."""
    for name in names:
        image = photograph(name)
        found = [image.crop(box) for box in _boxes(image)]
        yield from (found + [view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for view in found])[:count]


def lines() -> Iterator[Image.Image]:
    """Yield lines of text, in black on white and in other colours."""
    for index, words in enumerate(WORDS):
        ink, ground = ((20, 20, 20), (250, 250, 250)) if index % 3 else ((240, 240, 220), (40, 60, 90))
        font = ImageFont.load_default(24 + 6 * (index % 4))
        left, top, right, bottom = font.getbbox(words)
        line = Image.new("RGB", (int(right - left) + 20, int(bottom - top) + 16), ground)
        ImageDraw.Draw(line).text((10 - left, 8 - top), words, fill=ink, font=font)
        yield line


def pages() -> Iterator[Image.Image]:
    """Yield pages with several of the lines."""
    every = list(lines())
    for start in range(6):
        page = Image.new("RGB", (700, 420), (250, 250, 250))
        for row in range(5):
            page.paste(every[(2 * row + start) % len(every)], (30 + 12 * row, 20 + 76 * row))
        yield page


def save(images: Iterator[Image.Image], folder: Path) -> Path:
    """Write images as PNG files into a new folder."""
    folder.mkdir(parents=True)
    for index, image in enumerate(images):
        image.save(folder / f"{index:03}.png")
    return folder


def _boxes(image: Image.Image) -> list[tuple[int, int, int, int]]:
    """Return the whole image, and squares of 0.9 and 0.7 of its shorter side at the centre and the corners."""
    width, height = image.size
    boxes = [(0, 0, width, height)]
    for share in (0.9, 0.7):
        side = round(share * min(width, height))
        right, low = width - side, height - side
        places = [(right // 2, low // 2), (0, 0), (right, 0), (0, low), (right, low)]
        boxes += [(left, top, left + side, top + side) for left, top in places]
    return boxes
