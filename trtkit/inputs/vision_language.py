"""Convert images to the vision tower's inputs with transformers' own image processor, from the bundle's files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trtkit.errors import DATA_ERRORS, GenerationError, RequestError, SourceError
from trtkit.inputs.images import read_image, upright_rgb

if TYPE_CHECKING:
    from PIL import Image

    from trtkit.arrays import Array, HeightWidth

# Prefix keys are signed 64-bit numbers: an image's key plus the position of the token in it.
_KEY_BITS = 62
# Limits of enlargement by an image processor: pixels if images become patches, else the longest edge.
MAX_PIXELS, MAX_EDGE = 2**27, 2**14


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image as the tower's inputs.

    inputs: by name. tokens: number of its soft tokens. key: a hash that identifies the image. tiles: rows and columns
    that it was cut into, (0, 0) if it was not. grid: tokens by time, height and width.
    """

    inputs: dict[str, Array]
    tokens: int
    key: int
    tiles: HeightWidth = (0, 0)
    grid: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class ImageForm:
    """Form of a tower's image inputs. pixels: shape [C, H, W] of a picture or a tile. The rest is as in `VisionSpec`.

    max_tokens: limit for an image that is cut into patches.
    """

    layout: Literal["image", "framed", "tiles", "crops", "patches"]
    pixels: tuple[Any, ...]
    tokens_per_image: int
    merge_size: int
    window_size: int
    max_tokens: int
    position_side: int = 0


class ImageReader:
    """Reads images for one vision tower. folder: the model's, or a bundle's `model/`.

    Raises GenerationError if the image processor cannot be loaded.
    """

    def __init__(self, form: ImageForm, folder: Path) -> None:
        self._form, self._processor = form, _processor(folder)
        _check_sizes(self._processor, MAX_PIXELS if form.layout == "patches" else MAX_EDGE, str(folder))
        self._layouts = {
            "image": self._picture,
            "framed": self._picture,
            "tiles": self._tiles,
            "crops": self._crops,
            "patches": self._patches,
        }

    def prepare(self, source: Any) -> PreparedImage:
        """Return an image, given as a path or PIL image, as tower inputs. Raises RequestError for anything else."""
        if isinstance(source, PreparedImage):
            return source
        image, where = _opened(source)
        try:
            return self._layouts[self._form.layout](image, where)
        except ValueError as error:  # raised by transformers, for example for an image 200 times as wide as it is high
            raise RequestError(f"the image cannot be used: {error}", where, "give another image") from None
        except DATA_ERRORS as error:
            what = f"the image processor fails: {type(error).__name__}: {error}"
            raise RequestError(what, where, "correct preprocessor_config.json and build the bundle again") from None

    def _picture(self, image: Image.Image, where: str) -> PreparedImage:
        pixels = self._processor(images=[image], return_tensors="np")["pixel_values"]
        if len(pixels) != 1:
            what = f"the image processor cuts this image into {len(pixels)} pictures, and the model's prompt has one"
            raise RequestError(what, where, "set `do_pan_and_scan: false` in preprocessor_config.json and build again")
        return self._of_pixels(pixels, where)

    def _tiles(self, image: Image.Image, where: str) -> PreparedImage:
        processed = self._processor(images=[[image]], return_row_col_info=True, return_tensors="np")
        mask = processed.get("pixel_attention_mask")
        if mask is not None and not np.all(mask):
            what = "the image processor pads this image; the tower takes full tiles"
            raise RequestError(what, where, "set `do_image_splitting` or a square `size` in preprocessor_config.json")
        tiles = int(processed["rows"][0][0]), int(processed["cols"][0][0])
        return self._of_pixels(processed["pixel_values"][0], where, tiles)

    def _crops(self, image: Image.Image, where: str) -> PreparedImage:
        pixels = self._processor(images=[image], crop_to_patches=True, return_tensors="np")["pixel_values"]
        return self._of_pixels(pixels, where)

    def _of_pixels(self, pixels: Array, where: str, tiles: HeightWidth = (0, 0)) -> PreparedImage:
        """Return pictures [N, C, H, W], all of the tower's fixed size, as tower inputs."""
        pixels = np.ascontiguousarray(pixels, np.float32)
        wanted = self._form.pixels
        if pixels.shape[1:] != wanted:
            what = f"the image processor gives pixels {list(pixels.shape[1:])}, the vision tower takes {list(wanted)}"
            raise RequestError(what, where, "correct the size in preprocessor_config.json and build the bundle again")
        tokens = len(pixels) * self._form.tokens_per_image
        return PreparedImage({"pixel_values": pixels}, tokens, array_key(pixels), tiles)

    def _patches(self, image: Image.Image, where: str) -> PreparedImage:
        processed = self._processor(images=[image], return_tensors="np")
        time, rows, columns = (int(size) for size in processed["image_grid_thw"][0])
        merge = self._form.merge_size
        grid = time, rows // merge, columns // merge
        tokens = grid[0] * grid[1] * grid[2]
        if tokens > self._form.max_tokens:
            what = f"the image becomes {tokens} tokens, the engine takes {self._form.max_tokens}"
            raise RequestError(what, where, "give a smaller image, or build with a larger `vision.max_tokens`")
        patches = np.ascontiguousarray(processed["pixel_values"], np.float32)
        inputs: dict[str, Array] = {
            "patches": patches.reshape(tokens, merge**2, -1),
            "positions": patch_positions(rows, columns, merge).astype(np.int32),
        }
        if self._form.position_side:
            inputs |= position_taps(inputs["positions"], (rows, columns), self._form.position_side)
        if self._form.window_size:
            inputs["windows"] = _windows(*grid[1:], self._form.window_size).astype(np.int32)
        return PreparedImage(inputs, tokens, array_key(patches, np.array(grid)), grid=grid)


def patch_positions(rows: int, columns: int, merge: int) -> Array:
    """Return the row and column of every patch, [tokens, merge * merge, 2], in the image processor's order."""
    at = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
    blocks = at.reshape(rows // merge, merge, columns // merge, merge, 2).transpose(0, 2, 1, 3, 4)
    return blocks.reshape(-1, merge**2, 2)


def position_taps(positions: Array, size: HeightWidth, side: int) -> dict[str, Array]:
    """Return the indices and weights of the four learned positions around every patch: [tokens, merge * merge, 4].

    positions: [tokens, merge * merge, 2], rows and columns in an image of `size` patches. The image's corners coincide
    with those of the side x side square of learned positions. HF: `get_vision_interpolation_indices_and_weights`.
    """
    at = positions * ((side - 1) / np.maximum(np.array(size) - 1, 1))
    low = np.floor(at).astype(np.int64)
    near, share = np.stack([low, np.minimum(low + 1, side - 1)], -1), at - low
    weights = np.stack([1 - share, share], -1)  # [tokens, merge * merge, 2, 2]: rows and columns, low and high
    taps = near[..., 0, :, None] * side + near[..., 1, None, :]
    products = weights[..., 0, :, None] * weights[..., 1, None, :]
    shape = (*positions.shape[:2], 4)
    return {"taps": taps.reshape(shape).astype(np.int32), "tap_weights": products.reshape(shape).astype(np.float32)}


def _windows(rows: int, columns: int, size: int) -> Array:
    """Return the window index of each token, [tokens]: squares of `size` tokens from the upper left on."""
    row, column = np.meshgrid(np.arange(rows) // size, np.arange(columns) // size, indexing="ij")
    return (row * (columns // size + 1) + column).reshape(-1)


def _opened(source: Any) -> tuple[Image.Image, str]:
    """Return an RGB image and its name in errors."""
    from PIL import Image

    if not isinstance(source, (str, Path, Image.Image)):
        raise RequestError(f"an image cannot be a {type(source).__name__}", "images", "give a path or a PIL image")
    try:
        if isinstance(source, Image.Image):
            return upright_rgb(source, "images"), "images"
        return read_image(Path(source)), str(source)
    except SourceError as error:
        raise RequestError(error.what, error.where, error.fix) from None


def array_key(*arrays: Array) -> int:
    """Return a hash of the arrays' bytes and shapes."""
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return int.from_bytes(digest.digest(), "little") >> (64 - _KEY_BITS)


def _processor(folder: Path) -> Any:
    """Load the image processor in the variant that does not need torchvision."""
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    except Exception as error:  # a damaged file can make transformers raise anything
        what = f"the image processor cannot be loaded: {type(error).__name__}: {error}"
        raise GenerationError(what, str(folder), "build the bundle again from a folder whose processor loads") from None


def _check_sizes(processor: Any, most: int, where: str) -> None:
    """Raise GenerationError for sizes that would let any image exhaust memory."""
    for name in ("size", "crop_size", "max_image_size"):
        try:
            sizes = dict(getattr(processor, name, None) or {})
        except (TypeError, ValueError):  # sizes without names cannot be checked
            continue
        for key, size in sizes.items():
            if size is not None and not (isinstance(size, int) and size <= most):
                what = f"`{name}.{key}` of the image processor is `{str(size)[:100]}`, at most {most} is taken"
                raise GenerationError(what, where, "correct preprocessor_config.json and build the bundle again")
