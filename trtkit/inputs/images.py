"""Convert images to inputs by a config's `preprocess`."""

from __future__ import annotations

import base64
import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import AGAIN, DATA_ERRORS, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from PIL import Image

    from trtkit.arrays import Array, WidthHeight
    from trtkit.config.task import Preprocess, Resize


_GREY = 114
IMAGE = "image"
"""Where an error is, if the image has no name."""
_FIX = "give a PNG or JPEG file"
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""Formats that Pillow may decode. Others are rare, and one of them, PostScript, runs an external program."""
MAX_PIXELS = 89_478_485
"""Limit on a scaled image, Pillow's own limit for reading: resizing may enlarge a line of pixels a thousandfold."""
# Pillow's modes of single-channel images with more than 8 bits, and the value of one 8-bit step in them.
_WIDE_MODES = {"I;16": 257.0, "I;16L": 257.0, "I;16B": 257.0, "I;16N": 257.0}


def read_image(path: Path) -> Image.Image:
    """Return the image at `path` as upright RGB.

    Raises SourceError if it is not an image or its value range is unknown.
    """
    return _opened(path, str(path), _FIX)


def check_image(path: Path) -> None:
    """Refuse a file without an image header. Raises SourceError."""
    from PIL import Image

    with _reading(str(path), _FIX), Image.open(path, formats=FORMATS):
        pass


def image_bytes(data: bytes) -> bytes:
    """Return an image's bytes; JSON cannot hold them and has base64, perhaps as a data URL."""
    _, comma, encoded = data.partition(b"base64,")
    try:
        return base64.b64decode(encoded if comma else data, validate=True)
    except ValueError:
        return data


def decode_image(data: bytes, name: str) -> Image.Image:
    """Return the image in `data`, a file's bytes, like `read_image`."""
    return _opened(io.BytesIO(data), name, "send the bytes of a PNG or JPEG file")


def _opened(file: Path | io.BytesIO, name: str, fix: str) -> Image.Image:
    from PIL import Image

    with _reading(name, fix), Image.open(file, formats=FORMATS) as image:
        return upright_rgb(image, name)


def upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return `image` as upright RGB. Raises SourceError if it has several frames or its value range is unknown."""
    from PIL import ImageOps

    with _reading(name, _FIX):
        count = getattr(image, "n_frames", 1)
        if count > 1 and image.format != "MPO":  # a JPEG of a camera: the others are previews
            parts = "pages" if image.format == "TIFF" else "frames"
            raise SourceError(f"an image of {count} {parts}", name, "give each as a file of its own, or a video")
        return _in_eight_bits(ImageOps.exif_transpose(image), name)


@contextlib.contextmanager
def _reading(name: str, fix: str) -> Iterator[None]:
    """Convert Pillow's errors to SourceError."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError:
        what = f"not a readable image: its format is none of {', '.join(FORMATS)}"
        raise SourceError(what, name, fix) from None
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise SourceError(f"an image of more than {limit} pixels", name, "scale it down") from None
    except (EOFError, OSError, SyntaxError, *DATA_ERRORS) as error:
        fix = AGAIN if "truncated" in str(error).lower() else fix
        raise SourceError(f"not a readable image: {error}", name, fix) from None


def _in_eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Return `image` as RGB with 16 bits scaled to 8. Raises SourceError if its value range is unknown."""
    from PIL import Image

    if image.mode in _WIDE_MODES or (image.mode == "I" and image.format == "PNG"):
        levels = np.rint(np.asarray(image, dtype=np.float32) / _WIDE_MODES.get(image.mode, 257.0))
        return Image.fromarray(levels.astype(np.uint8)).convert("RGB")
    if image.mode in {"I", "F"}:
        kind = "floating-point" if image.mode == "F" else "32-bit integer"
        fix = "convert it to 8 or 16 bits a channel, or give .npz arrays"
        raise SourceError(f"an image of {kind} values has no fixed range for black and white", name, fix)
    return image.convert("RGB")


def image_input(image: Image.Image, preprocess: Preprocess) -> Array:
    """Return `image` as an fp32 input [1, 3, H, W], or [1, H, W, 3] if `preprocess.layout` is `nhwc`.

    Raises SourceError if resizing makes it too large.
    """
    from PIL import Image

    width, height = _scaled_size(image.size, preprocess)
    if width * height > MAX_PIXELS:
        what = f"an image of {image.width}x{image.height} pixels would be scaled to {width}x{height}"
        raise SourceError(what, IMAGE, f"give one whose sides are more alike; {MAX_PIXELS} pixels are the limit")
    scaled = image.resize((width, height), Image.Resampling[preprocess.filter.upper()])
    if preprocess.resize is not None and preprocess.resize.letterbox is not None:
        scaled = _letterboxed(scaled, *preprocess.resize.letterbox)
    if preprocess.crop is not None:
        scaled = _centre_crop(scaled, *preprocess.crop)
    pixels = np.asarray(scaled, dtype=np.float32)
    if preprocess.channels == "bgr":
        pixels = pixels[:, :, ::-1]
    mean, std = (np.asarray(values, dtype=np.float32) for values in (preprocess.mean, preprocess.std))
    normal = (pixels * np.float32(preprocess.scale) - mean) / std
    return np.ascontiguousarray((normal if preprocess.layout == "nhwc" else normal.transpose(2, 0, 1))[None])


def input_size(array: Array, preprocess: Preprocess) -> tuple[int, int]:
    """Return (width, height) of an input [1, ...]."""
    height, width = array.shape[1:3] if preprocess.layout == "nhwc" else array.shape[2:]
    return width, height


@dataclass(frozen=True)
class PicturePlacement:
    """Placement of a picture in its input: `input = picture * scale + offset` per axis (x, y), in pixels.

    size: (width, height) of the picture.
    """

    size: WidthHeight
    scale: tuple[float, float]
    offset: tuple[float, float]

    def on_picture(self, points: Array) -> Array:
        """Return points of the input [..., 2] in coordinates of the picture, clipped to its edges."""
        placed = (points - np.array(self.offset)) / np.array(self.scale)
        return np.asarray(placed.clip(0, np.array(self.size)))


def placement(size: WidthHeight, preprocess: Preprocess) -> PicturePlacement:
    """Return the placement of a picture of `size` (width, height) in the output of `image_input`."""
    scaled = _scaled_size(size, preprocess)
    offset = (0, 0)
    if preprocess.resize is not None and preprocess.resize.letterbox is not None:
        offset = _bars(scaled, *preprocess.resize.letterbox)
    elif preprocess.crop is not None:
        left, top = _cut(scaled, *preprocess.crop)
        offset = (-left, -top)
    return PicturePlacement(size, (scaled[0] / size[0], scaled[1] / size[1]), offset)


def _scaled_size(size: WidthHeight, preprocess: Preprocess) -> tuple[int, int]:
    """Return (width, height) after resizing and rounding to multiples."""
    width, height = _resized(size, preprocess.resize)
    if preprocess.crop is None and preprocess.multiple_of > 1:
        unit = preprocess.multiple_of
        width, height = (max(unit, round(length / unit) * unit) for length in (width, height))
    return max(1, round(width)), max(1, round(height))


def _resized(size: WidthHeight, resize: Resize | None) -> tuple[float, float]:
    """Return (width, height) with the aspect ratio kept, except for `exact`."""
    width, height = size
    if resize is None:
        return width, height
    if resize.exact is not None:
        return resize.exact[1], resize.exact[0]
    if resize.letterbox is not None:
        factor = min(resize.letterbox[0] / height, resize.letterbox[1] / width)
        return width * factor, height * factor
    if resize.shortest_edge is not None:
        edge, short = resize.shortest_edge, min(size)
        return edge * width // short, edge * height // short  # truncated, as in torchvision and transformers
    if resize.longest_edge is not None:
        factor = resize.longest_edge / max(size)
    else:
        assert resize.height is not None
        factor = resize.height / height
    return width * factor, height * factor


def _letterboxed(image: Image.Image, height: int, width: int) -> Image.Image:
    """Center an image on gray."""
    from PIL import Image

    canvas = Image.new("RGB", (width, height), (_GREY,) * 3)
    canvas.paste(image, _bars(image.size, height, width))
    return canvas


def _bars(size: WidthHeight, height: int, width: int) -> tuple[int, int]:
    """Return the left and top bars of a letterbox; an odd pixel goes to the right or bottom bar."""
    return (width - size[0]) // 2, (height - size[1]) // 2


def _centre_crop(image: Image.Image, height: int, width: int) -> Image.Image:
    """Crop (height, width) from the center; pixels outside the image are black."""
    left, top = _cut(image.size, height, width)
    return image.crop((left, top, left + width, top + height))


def _cut(size: WidthHeight, height: int, width: int) -> tuple[int, int]:
    """Return left and top of a center crop."""
    return round((size[0] - width) / 2), round((size[1] - height) / 2)
