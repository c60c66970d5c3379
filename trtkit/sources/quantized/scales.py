"""Scales as checkpoints store them -> as `QuantizedMatrix` takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from trtkit.arrays import Array, MatrixShape

AGAIN = "quantize the model again"


def row_scales(scales: Array, shape: MatrixShape, block: MatrixShape = (0, 0)) -> Array:
    """Return scales of a matrix [out, in] in fp32 as [], [out] or [out, blocks].

    block: rows and columns that share a scale, where several rows do; each row then gets its own. Raises SourceError.
    """
    wide, (out, size), (rows, columns) = finite(scales), shape, block
    if wide.size == 1:
        return wide.reshape(())
    if wide.ndim == 2 and len(wide) == out and size % wide.shape[1] == 0:
        return wide.reshape(out) if wide.shape[1] == 1 else wide
    if wide.shape == (out,):
        return wide
    if rows and size % columns == 0 and wide.size == -(-out // rows) * (size // columns):
        grid = wide.reshape(-1, size // columns)
        return np.ascontiguousarray(np.repeat(grid, rows, axis=0)[:out])
    what = f"scales of shape {list(scales.shape)} do not belong to rows or blocks of {out} rows and {size} columns"
    raise SourceError(what, fix="copy the checkpoint's files again")


def finite(scales: Array) -> Array:
    """Return scales in fp32. Raises SourceError where one is NaN or infinite."""
    wide = np.ascontiguousarray(scales).astype(np.float32)
    if not np.isfinite(wide).all():
        raise SourceError("scales are NaN or infinite", fix=AGAIN)
    return wide


def block_scales(scales: Array, shape: MatrixShape, block: int) -> Array:
    """Return scales [out, in / block] as they are. Raises SourceError where they are of another shape or NaN."""
    out, size = shape
    if scales.shape != (out, size // block) or size % block:
        where = f"{out} rows of {size} columns in blocks of {block}"
        what = f"scales of shape {list(scales.shape)} do not belong to {where}"
        raise SourceError(what, fix="copy the checkpoint's files again")
    finite(scales)
    return scales
