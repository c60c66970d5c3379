"""Reads safetensors files without copying: a JSON header, followed by arrays that stay mapped.

Format: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import mmap
import shlex
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import AGAIN, SourceError, reader
from trtkit.files import json_fault, open_regular, read_text
from trtkit.sources.checkpoint import StoredArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from trtkit.arrays import Array

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth")


def read_folder(folder: Path) -> tuple[dict[str, StoredArray], tuple[Path, ...]]:
    """Return all arrays of a folder by name, and the files that were read.

    If the folder has both `model.safetensors` and an index, the index is ignored, as in transformers. Raises
    SourceError for missing shards, an index that contradicts its shards, an array present in two shards, and for a
    folder of pickles.
    """
    single, index = folder / _SINGLE, folder / INDEX
    if index.is_file() and not single.is_file():
        weight_map = _weight_map(index)
        shards = _shards(index, sorted(set(weight_map.values())))
        by_shard = {path.name: read_safetensors(path) for path in shards}
        _check_index(index, weight_map, by_shard)
        return _joined(folder, by_shard), (index, *shards)
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise _without_safetensors(folder)
    return _joined(folder, {path.name: read_safetensors(path) for path in files}), tuple(files)


def has_usual_names(folder: Path) -> bool:
    """Whether the weights are in files with the names that transformers expects."""
    return (folder / INDEX).is_file() or (folder / _SINGLE).is_file()


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object. Raises SourceError."""
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"not valid JSON: {json_fault(error)}", str(path), AGAIN) from None
    except OSError as error:
        raise SourceError(f"cannot be read: {(error.strerror or str(error)).lower()}", str(path), AGAIN) from None
    if not isinstance(data, dict):
        raise SourceError("not a JSON object", str(path), AGAIN)
    return data


def json_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, empty if it cannot be read; callers that need it report that."""
    try:
        return read_json(path)
    except SourceError:
        return {}


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError("`weight_map` is missing", str(index), "copy or download the file again")
    return {str(name): str(shard) for name, shard in weight_map.items()}


def _shards(index: Path, names: Sequence[str]) -> list[Path]:
    outside = [name for name in names if "/" in name or "\\" in name or name in (".", "..")]
    if outside:
        raise SourceError(f"shard `{outside[0]}` is outside the folder", str(index), "put all shards next to the index")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        what = f"{len(missing)} of {len(names)} shards are missing: {listed}"
        raise SourceError(what, str(index), f"put them into {index.parent}")
    return [index.parent / name for name in names]


def _check_index(index: Path, weight_map: dict[str, str], by_shard: dict[str, dict[str, StoredArray]]) -> None:
    """Raise SourceError if the index names an array that its shard lacks."""
    lacking = [name for name, shard in weight_map.items() if name not in by_shard[shard]]
    if lacking:
        first, count = lacking[0], len(lacking)
        what = f"{count} tensors are not in the shard that the index names, the first is `{first}`"
        raise SourceError(f"{what} in `{weight_map[first]}`", str(index), "take index and shards from the same source")


def _joined(folder: Path, by_shard: dict[str, dict[str, StoredArray]]) -> dict[str, StoredArray]:
    """Return the arrays of all shards. Raises SourceError for a name that occurs in two of them."""
    shard_of: dict[str, str] = {}
    for shard, arrays in by_shard.items():
        for name in arrays:
            if name in shard_of:
                what = f"tensor `{name}` is in two files: `{shard_of[name]}` and `{shard}`"
                raise SourceError(what, str(folder), "remove the file that is not the model's")
            shard_of[name] = shard
    return {name: stored for arrays in by_shard.values() for name, stored in arrays.items()}


def _without_safetensors(folder: Path) -> SourceError:
    """Return the error for a folder without safetensors, with the way to convert pickles."""
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if not pickles:
        return SourceError("no safetensors file in the folder", str(folder), "download the model's *.safetensors too")
    what = f"the weights are pickles ({_listed(pickles)}), which can run code when they are read"
    code = "import sys, transformers as t; f = sys.argv[1]; "
    code += "t.AutoModelForCausalLM.from_pretrained(f).save_pretrained(f)"
    command = shlex.join(["python", "-c", code, str(folder)])
    return SourceError(what, str(folder), f"convert them to safetensors: {command}")


def _listed(names: Iterable[str]) -> str:
    """Return up to three names for a message."""
    all_names = list(names)
    return ", ".join(f"`{name}`" for name in all_names[:3]) + (", ..." if len(all_names) > 3 else "")


# NumPy's or ml_dtypes' names, by the format's own.
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
    """An array in a file. offset: from the start of the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


@reader
def read_safetensors(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of a file by name, mapped into memory.

    Raises SourceError for a truncated file, and for a header that is damaged or points outside the file.
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
    """Release the memory of an array mapped from a file; the system reads it again when needed.

    Only whole pages are released. Does nothing for an array that is not mapped.
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
    """Return the header's tensor entries, and the start of the data."""
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
    """Return a tensor's location. Raises SourceError for an inconsistent entry."""
    try:
        type_name, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_sound = all(isinstance(number, int) and number >= 0 for number in (begin, end, *shape))
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise SourceError("the header's entry is damaged", where, _AGAIN)
    if type_name not in _TYPES:
        raise SourceError(f"type `{type_name}` is not known", where, f"known: {', '.join(_TYPES)}")
    dtype = numpy_type(_TYPES[type_name])
    needed = math.prod(shape) * dtype.itemsize
    if end - begin != needed:
        what = f"{type_name} of shape {list(shape)} takes {needed} bytes, the header gives it {end - begin}"
        raise SourceError(what, where, _AGAIN)
    return _ArraySpan(dtype, tuple(shape), data_start + begin)


def _check_ends(path: Path, spans: dict[str, _ArraySpan]) -> None:
    """Raise SourceError if a tensor extends beyond the end of the file."""
    size = path.stat().st_size
    ends = {name: span.offset + math.prod(span.shape) * span.dtype.itemsize for name, span in spans.items()}
    beyond = [name for name, end in ends.items() if end > size]
    if beyond:
        what = f"the file is truncated: {size} bytes, {max(ends.values())} needed"
        raise SourceError(f"{what}; {len(beyond)} tensors are cut off, the first is `{beyond[0]}`", str(path), _AGAIN)


def numpy_type(name: str) -> np.dtype[Any]:
    """Return the type with this name in NumPy or ml_dtypes."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, None) or name)


def _view(memory: Array, span: _ArraySpan) -> Array:
    """Return an array in the file's memory; a copy only if its address in the file is not aligned for its type."""
    volume = math.prod(span.shape)
    view = np.frombuffer(memory, span.dtype, volume, span.offset) if volume else np.empty(0, span.dtype)
    return np.require(view, requirements="A").reshape(span.shape)


def write_safetensors(path: Path, arrays: Mapping[str, StoredArray], report: Callable[[int], None]) -> None:
    """Write arrays to a file, reading them one at a time.

    Each states its type; `report` gets the bytes written so far.
    """
    types = {stored: name for name, stored in _TYPES.items()}
    sizes = {name: math.prod(array.shape) * numpy_type(array.dtype).itemsize for name, array in arrays.items()}
    # Wide types first, so that all are aligned, as in the safetensors library.
    order = sorted(arrays, key=lambda name: (-numpy_type(arrays[name].dtype).itemsize, name))
    header, end = {}, 0
    for name in order:
        span = [end, end := end + sizes[name]]
        header[name] = {"dtype": types[arrays[name].dtype], "shape": list(arrays[name].shape), "data_offsets": span}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    done = 0
    with path.open("xb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name in order:
            array = arrays[name].read()
            if (array.shape, array.dtype.name) != (arrays[name].shape, arrays[name].dtype):
                raise AssertionError(f"{name}: {array.dtype} {array.shape}")
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            report(done := done + sizes[name])
