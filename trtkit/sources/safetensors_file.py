"""Read safetensors files without copying: a header of JSON, then arrays that stay mapped.

Format: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError, reader
from trtkit.files import open_regular
from trtkit.sources.checkpoint import StoredArray

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.arrays import Array

# NumPy's name, or ml_dtypes', by the format's own.
_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the reference implementation's limit
_AGAIN = "copy or download the file again"


@dataclass(frozen=True)
class _ArraySpan:
    """An array in a file. offset: from the file's first byte."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


@reader
def read_safetensors(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of a file by name, mapped into memory.

    Raises SourceError for a file that is truncated, and for a header that is damaged or points outside the file.
    """
    header, data_start = _header(path)
    spans = {name: _place(f"{path}: tensor `{name}`", entry, data_start) for name, entry in header.items()}
    _check_ends(path, spans)
    memory = np.memmap(path, np.uint8, "r")
    return {
        name: StoredArray(span.shape, partial(_view, memory, span), dtype=span.dtype.name)
        for name, span in spans.items()
    }


def release(array: Array) -> None:
    """Give the memory of an array that is mapped from a file back to the system, which reads it again when needed.

    Others than whole pages are kept. Does nothing for an array that is not mapped.
    """
    base: Any = array
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None) if isinstance(base, np.ndarray) else getattr(base, "obj", None)
    if base is None or not array.nbytes or not array.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = array.ctypes.data - base.ctypes.data
    first, last = -(-start // mmap.PAGESIZE), (start + array.nbytes) // mmap.PAGESIZE
    if last > first:
        base._mmap.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)  # type: ignore[attr-defined]


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header's entries of tensors, and where their data start."""
    header, start = _parsed_header(path)
    return {name: entry for name, entry in header.items() if name != "__metadata__"}, start


def _parsed_header(path: Path) -> tuple[dict[str, Any], int]:
    size = path.stat().st_size
    with open_regular(path) as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
            what = f"not a safetensors file, or a truncated one: {size} bytes, its header alone takes {length + 8}"
            raise SourceError(what, str(path), _AGAIN)
        if length > _MAX_HEADER_BYTES:
            raise SourceError(
                f"the header takes {length} bytes, at most {_MAX_HEADER_BYTES} are read", str(path), _AGAIN
            )
        text = file.read(length)
    try:
        header = json.loads(text)
    except ValueError as error:
        raise SourceError(f"the header is damaged: {error}", str(path), _AGAIN) from None
    if not isinstance(header, dict):
        raise SourceError("the header is damaged: it is not a JSON object", str(path), _AGAIN)
    return header, _LENGTH_BYTES + length


def _place(where: str, entry: Any, data_start: int) -> _ArraySpan:
    """Return where one tensor lies. Raises SourceError for an entry that contradicts itself."""
    try:
        type_name, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_sound = all(isinstance(number, int) and number >= 0 for number in (begin, end, *shape))
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise SourceError("the header's entry is damaged", where, _AGAIN)
    if type_name not in _TYPES:
        raise SourceError(f"type `{type_name}` is not known", where, f"known: {', '.join(_TYPES)}")
    dtype = _numpy_type(_TYPES[type_name])
    needed = math.prod(shape) * dtype.itemsize
    if end - begin != needed:
        what = f"{type_name} of shape {list(shape)} takes {needed} bytes, the header gives it {end - begin}"
        raise SourceError(what, where, _AGAIN)
    return _ArraySpan(dtype, tuple(shape), data_start + begin)


def _check_ends(path: Path, spans: dict[str, _ArraySpan]) -> None:
    """Raise SourceError where a tensor reaches beyond the end of the file."""
    size = path.stat().st_size
    ends = {name: span.offset + math.prod(span.shape) * span.dtype.itemsize for name, span in spans.items()}
    beyond = [name for name, end in ends.items() if end > size]
    if beyond:
        what = f"the file is truncated: {size} bytes, {max(ends.values())} needed"
        raise SourceError(f"{what}; {len(beyond)} tensors are cut off, the first is `{beyond[0]}`", str(path), _AGAIN)


def _numpy_type(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, None) or name)


def _view(memory: Array, span: _ArraySpan) -> Array:
    """Return an array in the file's memory; a copy only where the file puts it at an address its type cannot have."""
    volume = math.prod(span.shape)
    view = np.frombuffer(memory, span.dtype, volume, span.offset) if volume else np.empty(0, span.dtype)
    return np.require(view, requirements="A").reshape(span.shape)
