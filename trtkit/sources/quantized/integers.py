"""Matrices of four or eight bits whose codes are unsigned, packed into 32-bit words, with scales by group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.quantized_matrix import QuantizedMatrix, pack, unpack

if TYPE_CHECKING:
    from trtkit.arrays import Array


def unsigned(words: Array, bits: int) -> Array:
    """Return the numbers [rows, n * 32 / bits] of words [rows, n], the lowest bits first. Raises SourceError."""
    if words.ndim != 2 or words.dtype.name not in ("int32", "uint32"):
        what = f"packed words are {words.dtype.name} of {words.ndim} axes, not int32 of 2"
        raise SourceError(what, fix="quantize the model again")
    if bits not in (4, 8):
        raise SourceError(f"TensorRT does not support {bits}-bit weights", fix="use 4 or 8 bits")
    packed = np.ascontiguousarray(words).view(np.uint8)
    return packed if bits == 8 else unpack(packed)


def integer_matrix(
    numbers: Array, bits: int, scales: Array, zeros: Array | None = None, groups: Array | None = None
) -> QuantizedMatrix:
    """Return the matrix (numbers - zeros) * scales.

    numbers: unsigned [out, in]. scales, zeros: [out, blocks]; without zeros the middle of the range is 0.
    groups: [in], each column's block; None if blocks follow each other. Raises SourceError where sizes do not fit.
    """
    out, size = numbers.shape
    middle = 1 << (bits - 1)
    wide = _checked(scales, out, size)
    offsets = None
    if zeros is not None:
        if zeros.shape != wide.shape:
            what = f"zero points of shape {list(zeros.shape)} for scales of shape {list(wide.shape)}"
            raise SourceError(what, fix="copy the checkpoint's files again")
        above = middle - zeros.astype(np.float32)
        offsets = above * wide if above.any() else None
    columns = None if groups is None else _columns(groups, wide.shape[1])
    ordered = numbers if columns is None else numbers[:, columns]
    codes = pack(ordered ^ 8) if bits == 4 else np.ascontiguousarray(ordered ^ 128).view(np.int8)
    return QuantizedMatrix("int4" if bits == 4 else "int8", codes, wide, offsets=offsets, columns=columns)


def check_group(scales: Array, size: int, group: int) -> None:
    """Check that scales [out, blocks] are those of groups of columns, -1 for one group. Raises SourceError."""
    blocks = scales.shape[-1]
    if blocks * group != size and not (group < 0 and blocks == 1):
        what = f"{blocks} groups of {group} columns are not the matrix's {size}"
        raise SourceError(what, fix="quantize with a group size that divides the columns")


def _checked(scales: Array, out: int, size: int) -> Array:
    """Return scales [out, blocks] in fp32. Raises SourceError where they do not fit or are not finite."""
    wide = np.ascontiguousarray(scales, np.float32)
    if wide.ndim != 2 or wide.shape[0] != out or not wide.shape[1] or size % wide.shape[1]:
        what = f"scales of shape {list(wide.shape)} do not belong to blocks of {out} rows and {size} columns"
        raise SourceError(what, fix="copy the checkpoint's files again")
    if not np.isfinite(wide).all():
        raise SourceError("scales are NaN or infinite", fix="quantize the model again")
    return wide


def _columns(groups: Array, blocks: int) -> Array | None:
    """Return the columns by block, None if they are in order. Raises SourceError for blocks of unlike sizes."""
    counts = np.bincount(groups, minlength=blocks) if groups.size and groups.min() >= 0 else np.array([])
    if len(counts) != blocks or (counts != counts[0]).any():
        what = f"`g_idx` does not put {groups.size} columns into {blocks} groups of one size"
        raise SourceError(what, fix="quantize with a group size that divides the columns")
    order = np.argsort(groups, kind="stable")
    return None if np.array_equal(order, np.arange(groups.size)) else order
