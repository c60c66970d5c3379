"""Scales as checkpoints store them -> as `QuantizedMatrix` takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from trtkit.quantized import Array

AGAIN = "quantize the model again"


def row_scales(scales: Array, shape: tuple[int, int], block: tuple[int, int] = (0, 0)) -> Array:
    """Return scales of a matrix [out, in] in fp32 as [], [out] or [out, blocks].

    block: rows and columns that share a scale, where several rows do; each row then gets its own. Raises SourceError.
    """
    wide, (out, size), (rows, columns) = finite(scales), shape, block
    if wide.size == 1:
        return wide.reshape(())
    wide = wide.reshape([length for length in wide.shape if length > 1])
    if wide.shape == (out,) or (wide.ndim == 2 and len(wide) == out and size % wide.shape[1] == 0):
        return wide
    grid = finite(scales).reshape(-1, max(size // columns, 1)) if columns and size % columns == 0 else None
    if grid is not None and rows and len(grid) == -(-out // rows):
        return np.ascontiguousarray(np.repeat(grid, rows, axis=0)[:out])
    what = f"scales of shape {list(scales.shape)} do not belong to rows or blocks of {out} rows and {size} columns"
    raise SourceError(what, fix="copy the checkpoint's files again")


def finite(scales: Array) -> Array:
    """Return scales in fp32. Raises SourceError where one is NaN or infinite."""
    wide = np.ascontiguousarray(scales).astype(np.float32)
    if not np.isfinite(wide).all():
        raise SourceError("scales are NaN or infinite", fix=AGAIN)
    return wide


def block_scales(scales: Array, shape: tuple[int, int], block: int) -> Array:
    """Return scales [out, in / block] as they are. Raises SourceError where they are of another shape or NaN."""
    out, size = shape
    if scales.shape != (out, size // block) or size % block:
        what = (
            f"scales of shape {list(scales.shape)} do not belong to blocks of {block} of {out} rows and {size} columns"
        )
        raise SourceError(what, fix="copy the checkpoint's files again")
    finite(scales)
    return scales
