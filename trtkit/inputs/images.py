"""Turn images into inputs, as a config's `preprocess` says."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.task import Preprocess, Resize

Array = np.ndarray[Any, Any]

MAX_PIXELS = 89_478_485
"""Of a scaled image: Pillow's own limit for one that is read. A line of pixels may grow a thousandfold."""
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def read_image(path: Path) -> Image.Image:
    """Return the image at `path` as RGB. Raises SourceError where it is none."""
    return _opened(path, str(path), "give a PNG or JPEG file")


def decode_image(data: bytes, name: str) -> Image.Image:
    """Return the image in `data`, the bytes of a file, as RGB. Raises SourceError where it is none."""
    return _opened(io.BytesIO(data), name, "send the bytes of a PNG or JPEG file")


def _opened(file: Path | io.BytesIO, name: str, fix: str) -> Image.Image:
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except UnidentifiedImageError:
        raise SourceError("not a readable image: its format is not known", name, fix) from None
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise SourceError(f"not a readable image: {error}", name, fix) from None


def image_input(image: Image.Image, preprocess: Preprocess) -> Array:
    """Return `image` as an fp32 input [1, 3, H, W]. Raises SourceError where scaling makes it too large."""
    width, height = _scaled_size(image, preprocess)
    if width * height > MAX_PIXELS:
        what = f"an image of {image.width}x{image.height} pixels would be scaled to {width}x{height}"
        raise SourceError(what, "image", f"give one whose sides are more alike; {MAX_PIXELS} pixels are the limit")
    scaled = image.resize((width, height), _FILTERS[preprocess.filter])
    if preprocess.crop is not None:
        scaled = _centre_crop(scaled, *preprocess.crop)
    pixels = np.asarray(scaled, dtype=np.float32)
    if preprocess.channels == "bgr":
        pixels = pixels[:, :, ::-1]
    mean, std = (np.asarray(values, dtype=np.float32) for values in (preprocess.mean, preprocess.std))
    normal = (pixels * np.float32(preprocess.scale) - mean) / std
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None])


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
