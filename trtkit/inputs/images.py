"""Turn images into inputs, as a config's `preprocess` says."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from PIL import Image

    from trtkit.config.task import Preprocess, Resize

Array = np.ndarray[Any, Any]

MAX_PIXELS = 89_478_485
"""Of a scaled image: Pillow's own limit for one that is read. A line of pixels may grow a thousandfold."""
# Pillow's modes of single-channel images with more than 8 bits, and what one step of 8 bits is in them.
_WIDE_MODES = {"I;16": 257.0, "I;16L": 257.0, "I;16B": 257.0, "I;16N": 257.0}


def read_image(path: Path) -> Image.Image:
    """Return the image at `path` as RGB, upright. Raises SourceError if it is not an image or its range is unknown."""
    return _opened(path, str(path), "give a PNG or JPEG file")


def decode_image(data: bytes, name: str) -> Image.Image:
    """Return the image in `data`, the bytes of a file, as `read_image` does."""
    return _opened(io.BytesIO(data), name, "send the bytes of a PNG or JPEG file")


def _opened(file: Path | io.BytesIO, name: str, fix: str) -> Image.Image:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return _in_eight_bits(ImageOps.exif_transpose(image), name)
    except UnidentifiedImageError:
        raise SourceError("not a readable image: its format is not known", name, fix) from None
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise SourceError(f"not a readable image: {error}", name, fix) from None


def _in_eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Return `image` as RGB; 16 bits are scaled to 8. Raises SourceError for values whose range is not known."""
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

    Raises SourceError if scaling makes it too large.
    """
    from PIL import Image

    width, height = _scaled_size(image, preprocess)
    if width * height > MAX_PIXELS:
        what = f"an image of {image.width}x{image.height} pixels would be scaled to {width}x{height}"
        raise SourceError(what, "image", f"give one whose sides are more alike; {MAX_PIXELS} pixels are the limit")
    scaled = image.resize((width, height), Image.Resampling[preprocess.filter.upper()])
    if preprocess.crop is not None:
        scaled = _centre_crop(scaled, *preprocess.crop)
    pixels = np.asarray(scaled, dtype=np.float32)
    if preprocess.channels == "bgr":
        pixels = pixels[:, :, ::-1]
    mean, std = (np.asarray(values, dtype=np.float32) for values in (preprocess.mean, preprocess.std))
    normal = (pixels * np.float32(preprocess.scale) - mean) / std
    return np.ascontiguousarray((normal if preprocess.layout == "nhwc" else normal.transpose(2, 0, 1))[None])


def _scaled_size(image: Image.Image, preprocess: Preprocess) -> tuple[int, int]:
    """Return (width, height) after resizing and rounding to multiples."""
    width, height = _resized(image.size, preprocess.resize)
    if preprocess.crop is None and preprocess.multiple_of > 1:
        unit = preprocess.multiple_of
        width, height = (max(unit, round(length / unit) * unit) for length in (width, height))
    return max(1, round(width)), max(1, round(height))


def _resized(size: tuple[int, int], resize: Resize | None) -> tuple[float, float]:
    """Return (width, height) with the aspect kept, but for `exact`."""
    width, height = size
    if resize is None:
        return width, height
    if resize.exact is not None:
        return resize.exact[1], resize.exact[0]
    if resize.shortest_edge is not None:
        edge, short = resize.shortest_edge, min(size)
        return edge * width // short, edge * height // short  # cut off, as torchvision and transformers do
    if resize.longest_edge is not None:
        factor = resize.longest_edge / max(size)
    else:
        assert resize.height is not None
        factor = resize.height / height
    return width * factor, height * factor


def _centre_crop(image: Image.Image, height: int, width: int) -> Image.Image:
    """Cut (height, width) out of the middle; what lies outside the image is black."""
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))
