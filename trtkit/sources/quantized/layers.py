"""Conversion of a quantized checkpoint's tensors to matrices: grouping by layer, packed integers, scales, leftovers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError, TrtkitError
from trtkit.quantized_matrix import QuantizedMatrix, pack, unpack
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.safetensors_file import release

if TYPE_CHECKING:
    from trtkit.arrays import Array, MatrixShape

Stored = Mapping[str, StoredArray]
Parts = dict[str, StoredArray]
"""A layer's tensors by the suffix of their names: `weight`, `weight_scale`, `qzeros`."""
Read = Callable[[str, Parts], "QuantizedMatrix"]


def layers(stored: Stored, marker: str, names: tuple[str, ...]) -> dict[str, Parts]:
    """Return, by module, the tensors called `names` of each module that has one called `marker`."""
    modules = [name.removesuffix(f".{marker}") for name in stored if name.endswith(f".{marker}")]
    return {
        module: {part: stored[key] for part in names if (key := f"{module}.{part}") in stored} for module in modules
    }


def replaced(stored: Stored, modules: Mapping[str, Parts], read: Read) -> Parts:
    """Return all tensors, with those of each of `modules` as a single `weight`, read on request.

    read: makes a matrix of a module and its tensors. For modules with similar tensors it is called now only for the
    first, to check that it succeeds; reading all would take minutes. Raises ProblemsError with every module that cannot
    be read.
    """
    used = {f"{module}.{part}" for module, parts in modules.items() for part in parts}
    rest = {name: array for name, array in stored.items() if name not in used}
    problems, weights, shapes = [], {}, {}
    for module, parts in modules.items():
        try:
            kind = _kind(module, parts)
            if kind not in shapes:
                shapes[kind] = read(module, parts).shape
        except TrtkitError as error:
            problems.append(Problem(error.what, module))
            continue
        again: Any = partial(_read, read, module, parts)
        weights[f"{module}.weight"] = StoredArray(shapes[kind], again, is_quantized=True)
    if problems:
        raise ProblemsError("quantized layers that cannot be read", problems)
    return rest | weights


def _kind(module: str, parts: Parts) -> tuple[object, ...]:
    """Return what decides whether a module can be read: the last part of its name, its tensors' forms and ranges."""
    return (module.rpartition(".")[2], *((name, *_form(array.read())) for name, array in sorted(parts.items())))


def _form(array: Any) -> tuple[object, ...]:
    """Return a tensor's shape, type and range; for codes no range, for short integers their bytes."""
    form = (array.shape, array.dtype.name)
    if array.dtype.itemsize == 1 or (array.ndim > 1 and array.dtype.kind in "iu"):
        return form
    if array.dtype.kind in "iu":
        return (*form, array.tobytes())
    wide = np.asarray(array, np.float32)
    return (*form, bool(np.isfinite(wide).all()), bool((wide > 0).all()))


def _read(read: Read, module: str, parts: Parts) -> QuantizedMatrix:
    """Read a module's matrix, releasing memory copied from a file. Raises SourceError naming the module."""
    try:
        matrix = read(module, parts)
    except TrtkitError as error:
        raise SourceError(error.what, module, error.fix) from None
    kept = [array for array in (matrix.codes, matrix.scales, matrix.offsets, matrix.input_factors) if array is not None]
    for stored in parts.values():
        array = stored.read()
        if not any(np.may_share_memory(array, other) for other in kept):
            release(array)
    return matrix


_CODES = ("int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2")


def check_rest(stored: Stored) -> None:
    """Raise ProblemsError naming weights that are codes without scales."""
    names = [name for name, array in stored.items() if name.endswith(".weight") and not array.is_quantized]
    kinds = {name: str(stored[name].first.read().dtype) for name in names}
    problems = [Problem(f"`{name}` holds {kind}", name) for name, kind in kinds.items() if kind in _CODES]
    if problems:
        raise ProblemsError("quantized weights without scales", problems, "copy the checkpoint's files again")


def part(parts: Parts, name: str) -> Any:
    """Return one tensor of a layer. Raises SourceError if there is none."""
    if name not in parts:
        raise SourceError(f"`{name}` is missing", fix="copy the checkpoint's files again")
    return parts[name].read()


def number(parts: Parts, name: str, default: float | None = None) -> float:
    """Return a one-element tensor as a number. Raises SourceError unless it is one finite positive element."""
    if name not in parts and default is not None:
        return default
    array = np.asarray(part(parts, name), np.float32)
    if array.size != 1 or not np.isfinite(array).all() or float(array.reshape(-1)[0]) <= 0:
        raise SourceError(f"`{name}` is not one positive number", fix="quantize the model again")
    return float(array.reshape(-1)[0])


def unsigned(words: Array, bits: int) -> Array:
    """Return the numbers [rows, n * 32 / bits] in words [rows, n], lowest bits first. Raises SourceError."""
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

    numbers: unsigned [out, in]. scales, zeros: [out, blocks]; without zeros the middle of the range is 0. groups: [in],
    each column's block; None if blocks are contiguous. Raises SourceError if sizes do not fit.
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
    """Check that scales [out, blocks] match groups of columns, -1 for a single group. Raises SourceError."""
    blocks = scales.shape[-1]
    if blocks * group != size and not (group < 0 and blocks == 1):
        what = f"{blocks} groups of {group} columns are not the matrix's {size}"
        raise SourceError(what, fix="quantize with a group size that divides the columns")


def _checked(scales: Array, out: int, size: int) -> Array:
    """Return scales [out, blocks] in fp32. Raises SourceError if they do not fit or are not finite."""
    wide = np.ascontiguousarray(scales, np.float32)
    if wide.ndim != 2 or wide.shape[0] != out or not wide.shape[1] or size % wide.shape[1]:
        what = f"scales of shape {list(wide.shape)} do not belong to blocks of {out} rows and {size} columns"
        raise SourceError(what, fix="copy the checkpoint's files again")
    if not np.isfinite(wide).all():
        raise SourceError("scales are NaN or infinite", fix="quantize the model again")
    return wide


def _columns(groups: Array, blocks: int) -> Array | None:
    """Return the columns sorted by block, None if they are in order. Raises SourceError for blocks of unequal sizes."""
    counts = np.bincount(groups, minlength=blocks) if groups.size and groups.min() >= 0 else np.array([])
    if len(counts) != blocks or (counts != counts[0]).any():
        what = f"`g_idx` does not put {groups.size} columns into {blocks} groups of one size"
        raise SourceError(what, fix="quantize with a group size that divides the columns")
    order = np.argsort(groups, kind="stable")
    return None if np.array_equal(order, np.arange(groups.size)) else order


AGAIN = "quantize the model again"


def row_scales(scales: Array, shape: MatrixShape, block: MatrixShape = (0, 0)) -> Array:
    """Return scales of a matrix [out, in] in fp32 as [], [out] or [out, blocks].

    block: rows and columns that share a scale, if several rows do; each row then gets its own. Raises SourceError.
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
    """Return scales in fp32. Raises SourceError if one is NaN or infinite."""
    wide = np.ascontiguousarray(scales).astype(np.float32)
    if not np.isfinite(wide).all():
        raise SourceError("scales are NaN or infinite", fix=AGAIN)
    return wide


def block_scales(scales: Array, shape: MatrixShape, block: int) -> Array:
    """Return scales [out, in / block] unchanged. Raises SourceError if their shape differs or any is NaN."""
    out, size = shape
    if scales.shape != (out, size // block) or size % block:
        where = f"{out} rows of {size} columns in blocks of {block}"
        what = f"scales of shape {list(scales.shape)} do not belong to {where}"
        raise SourceError(what, fix="copy the checkpoint's files again")
    finite(scales)
    return scales
