"""Reads untrusted ONNX files."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from trtkit.dtypes import from_onnx
from trtkit.errors import SourceError, reader
from trtkit.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx
    from google.protobuf.message import Message


@reader
def read_graph(path: Path) -> onnx.ModelProto:
    """Parse `path` without its external data. Raises SourceError if it is not a complete ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    if path.is_dir():
        raise SourceError("this is a folder, not an ONNX file", str(path), "give the .onnx file in it")
    try:
        with open_regular(path) as file:
            model = onnx.load(file, format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise SourceError(
            f"not an ONNX model, or a truncated one: {error}", str(path), "export or copy it again"
        ) from None
    broken = next((text for text in _texts(model) if isinstance(text, bytes)), None)
    if broken is not None:
        raise SourceError(f"not an ONNX model: the name {broken!r} is not UTF-8", str(path), "export or copy it again")
    if not model.HasField("graph") or not (model.graph.node or model.graph.output) or not model.opset_import:
        raise SourceError("not an ONNX model: it holds no graph", str(path), "export or copy it again")
    return model


@reader
def read_model(path: Path) -> onnx.ModelProto:
    """Parse `path` with its external data, after checking that every location is safe and complete."""
    from onnx import TensorProto

    model = read_graph(path)
    for tensor, data in list(_external_data(model, path)):
        with open_regular(data.file) as file:
            file.seek(data.offset)
            tensor.raw_data = file.read(data.size_bytes)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return model


def external_files(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Return the external data files of `model`, checked.

    Raises SourceError for a location outside the model's folder, a missing file, or one too short for its tensor.
    """
    return sorted({data.file for _, data in _external_data(model, path)})


@dataclass(frozen=True)
class _ExternalData:
    """The location of a tensor's bytes."""

    file: Path
    offset: int
    size_bytes: int


def _external_data(model: onnx.ModelProto, path: Path) -> Iterator[tuple[onnx.TensorProto, _ExternalData]]:
    """Yield every tensor stored outside the model file, with its checked location."""
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

    for tensor in _get_all_tensors(model):
        if not uses_external_data(tensor):
            continue
        where = f"{path}: tensor `{tensor.name}`"
        try:
            info = ExternalDataInfo(tensor)
        except ValueError as error:
            raise SourceError(f"the place of the external data is invalid: {error}", where) from None
        file = _inside(path.parent, info.location, where)
        data = _ExternalData(file, info.offset or 0, info.length or _tensor_bytes(tensor))
        if min(data.offset, data.size_bytes) < 0:
            raise SourceError("the place of the external data is invalid: below 0", where)
        size, needed = file.stat().st_size, data.offset + data.size_bytes
        if needed > size:
            raise SourceError(f"external data `{info.location}` is truncated: {size} bytes, {needed} needed", where)
        yield tensor, data


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes required by `tensor`'s shape and type, 0 for a type that TensorRT lacks."""
    from onnx import TensorProto

    dtype = from_onnx(TensorProto.DataType.Name(tensor.data_type))
    return dtype.size_bytes(math.prod(tensor.dims)) if dtype else 0


def _inside(folder: Path, location: str, where: str) -> Path:
    """Return the data file at `location`, which must be in `folder`."""
    file = folder / location
    if Path(location).is_absolute() or not file.resolve().is_relative_to(folder.resolve()):
        raise SourceError(
            f"external data `{location}` points outside the model's folder", where, "move the data next to the model"
        )
    if not file.is_file():
        raise SourceError(f"external data `{location}` is missing", where, f"put it into {folder}")
    return file


def _texts(message: Message) -> Iterator[object]:
    """Yield every text of a message except those of weights; protobuf leaves invalid UTF-8 as bytes."""
    for field, value in message.ListFields():
        inner = value if field.is_repeated else (value,)
        if field.type == field.TYPE_STRING:
            yield from inner
        elif field.type == field.TYPE_MESSAGE:
            yield from (text for item in inner if item.DESCRIPTOR.name != "TensorProto" for text in _texts(item))


def metadata_value(path: Path, key: str) -> str | None:
    """Return the value of `key` in an ONNX file's metadata, None if it is absent."""
    return metadata(path).get(key)


def metadata(path: Path) -> dict[str, str]:
    """Return an ONNX file's metadata without reading its graph; empty if it is not an ONNX file."""
    import onnx
    from google.protobuf.message import DecodeError

    entries: dict[str, str] = {}
    try:
        with open_regular(path) as file:
            for data in _protobuf_fields(file, onnx.ModelProto.METADATA_PROPS_FIELD_NUMBER):
                entry = onnx.StringStringEntryProto.FromString(data)
                entries.setdefault(entry.key, entry.value)
    except (OSError, EOFError, DecodeError):
        return {}
    return entries


def class_names(text: str) -> tuple[str, ...]:
    """Return the class names in a Python dict by number, as written by Ultralytics; empty for any other text."""
    import ast

    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    is_whole = isinstance(names, dict) and sorted(names, key=str) == sorted(range(len(names)), key=str)
    return tuple(str(names[index]) for index in range(len(names))) if is_whole else ()


_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
"""Wire types of protobuf."""


def _protobuf_fields(file: BinaryIO, number: int) -> Iterator[bytes]:
    """Yield the values of a message's field, skipping all other fields.

    Raises EOFError if the file is not a message.
    """
    size = os.fstat(file.fileno()).st_size
    while file.tell() < size:
        key = _varint(file)
        kind = key & 7
        if kind == _VARINT:
            _varint(file)
            continue
        if kind not in {_EIGHT_BYTES, _LENGTH, _FOUR_BYTES}:
            raise EOFError
        length = _varint(file) if kind == _LENGTH else {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}[kind]
        if length > size - file.tell():
            raise EOFError
        if key >> 3 == number and kind == _LENGTH:
            yield file.read(length)
        else:
            file.seek(length, os.SEEK_CUR)


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise EOFError
