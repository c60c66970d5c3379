"""GGUF files: metadata, and tensors that are mapped or dequantized on request.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The header is read here because `gguf.GGUFReader`
takes seconds for a vocabulary and does not notice a truncated file; dequantization uses the gguf package.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError
from trtkit.files import open_regular
from trtkit.quantized_matrix import QuantizedMatrix, pack
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.quantized.bitnet import ternary_matrix
from trtkit.sources.quantized.mxfp4 import powers_of_two

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.arrays import Array

_AGAIN = "copy or download the file again"
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_STRING, _ARRAY = 8, 9
# `struct` codes of metadata types, by type number.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


TERNARY = ("TQ1_0", "TQ2_0")


_QUANTIZED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", *TERNARY)


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in the file. type: name of its storage type in the format. offset: from the start of the file."""

    type: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class GgufFile:
    """An open GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    memory: Array

    def stored(self, name: str) -> StoredArray:
        """Return a tensor: mapped if it is F32, F16 or BF16, otherwise dequantized to fp32."""
        tensor = self.tensors[name]
        return StoredArray(tensor.shape, lambda: self._read(tensor, slice(None)))

    def stored_matrix(self, name: str, expert: int | None = None) -> StoredArray:
        """Return a matrix, or that of one expert: as stored if its type is supported, otherwise dequantized."""
        tensor = self.tensors[name]
        types, rank = (KEPT, 2) if expert is None else (KEPT_EXPERTS, 3)
        if tensor.type not in types or len(tensor.shape) != rank:
            return self.stored(name) if expert is None else self.stored_row(name, expert)

        def read() -> QuantizedMatrix:
            rows = self._bytes(tensor).reshape(*tensor.shape[:-1], -1)
            return block_matrix(rows if expert is None else rows[expert], tensor.type)

        return StoredArray(tensor.shape[-2:], read, is_quantized=True)  # type: ignore[arg-type]

    def stored_row(self, name: str, index: int) -> StoredArray:
        """Return entry `index` of a tensor's first axis without reading the others."""
        tensor = self.tensors[name]
        rows = slice(index, index + 1)
        return StoredArray(tensor.shape[1:], lambda: self._read(tensor, rows)[0])

    def _read(self, tensor: GgufTensor, rows: slice) -> Array:
        raw = self._bytes(tensor)
        if tensor.type in _PLAIN:
            import ml_dtypes

            name = _PLAIN[tensor.type]
            view = np.require(raw.view(getattr(ml_dtypes, name, name)), requirements="A")
            return view.reshape(tensor.shape)[rows]
        import gguf

        quantized = raw.reshape(*tensor.shape[:-1], -1)[rows]
        values: Array = gguf.quants.dequantize(quantized, gguf.GGMLQuantizationType[tensor.type])
        return values

    def _bytes(self, tensor: GgufTensor) -> Array:
        return self.memory[tensor.offset : tensor.offset + tensor.size_bytes]


def read_gguf(path: Path) -> GgufFile:
    """Read a file's metadata and the locations of its tensors.

    Raises SourceError for a file that is not GGUF, is truncated, is one of several parts, or contains unknown types.
    """
    import gguf  # noqa: F401

    with open_regular(path) as file:
        if file.read(4) != _MAGIC:
            raise SourceError("not a GGUF file: it does not start with `GGUF`", str(path), "give a .gguf file")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        cursor = _Cursor(data, 4)
        metadata, infos = _header(cursor, path)
    except (struct.error, EOFError):
        size = path.stat().st_size
        raise SourceError(f"the file is truncated: it ends in its header, at {size} bytes", str(path), _AGAIN) from None
    except ValueError as error:
        raise SourceError(f"the header is damaged: {error}", str(path), _AGAIN) from None
    if metadata.get("split.count", 0) > 1:
        what = f"this is one of {metadata['split.count']} parts"
        raise SourceError(what, str(path), "join them: llama-gguf-split --merge FIRST_PART OUT.gguf")
    tensors = _tensors(path, infos, _aligned(cursor.at, int(metadata.get("general.alignment", 32))))
    return GgufFile(path, metadata, tensors, np.frombuffer(data, np.uint8))


class _Cursor:
    """A position in the header."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data, self.at = data, at

    def scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self._data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return _shortest(value) if code == "f" else value

    def array(self, code: str, count: int) -> list[Any]:
        size = count * struct.calcsize("<" + code)
        if size > len(self._data) - self.at:
            raise EOFError
        values = struct.unpack_from(f"<{count}{code}", self._data, self.at)
        self.at += size
        return list(values)

    def string(self) -> str:
        length = self.scalar("Q")
        if length > len(self._data) - self.at:
            raise EOFError
        self.at += length
        return self._data[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        """Return a metadata value of type `kind`."""
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise ValueError(f"metadata type {kind} is not known")
        item, count = self.scalar("I"), self.scalar("Q")
        if item == _STRING:
            return [self.string() for _ in range(count)]
        if item not in _SCALARS:
            raise ValueError(f"arrays of metadata type {item} are not known")
        return self.array(_SCALARS[item], count)


_Info = tuple[str, tuple[int, ...], int, int]
"""A tensor's name, shape, type number, and offset from the start of the data."""


def _header(cursor: _Cursor, path: Path) -> tuple[dict[str, Any], list[_Info]]:
    """Return metadata and tensor entries. Raises SourceError, struct.error, EOFError, ValueError."""
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        what = f"GGUF version {version} is not supported; little-endian 2 and 3 are"
        raise SourceError(what, str(path), "convert the model again with a current llama.cpp")
    tensor_count, metadata_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(metadata_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    infos: list[_Info] = []
    for _ in range(tensor_count):
        name = cursor.string()
        dimensions = cursor.array("Q", cursor.scalar("I"))
        infos.append((name, tuple(reversed(dimensions)), cursor.scalar("I"), cursor.scalar("Q")))
    return metadata, infos


def _tensors(path: Path, infos: list[_Info], data_start: int) -> dict[str, GgufTensor]:
    """Return the tensors by name. Raises SourceError for unknown types and for data missing from the file."""
    tensors: dict[str, GgufTensor] = {}
    for name, shape, number, offset in infos:
        where = f"{path}: tensor `{name}`"
        if name in tensors:
            raise SourceError("the file holds two tensors of this name", where, _AGAIN)
        type_name = _type_name(number)
        if type_name not in _PLAIN and type_name not in _QUANTIZED:
            known = ", ".join((*_PLAIN, *_QUANTIZED))
            raise SourceError(f"type `{type_name}` is not supported; {known} are", where, "take another quantization")
        tensors[name] = GgufTensor(type_name, shape, data_start + offset, _size_bytes(where, type_name, shape))
    size, needed = path.stat().st_size, max((t.offset + t.size_bytes for t in tensors.values()), default=0)
    if needed > size:
        raise SourceError(f"the file is truncated: {size} bytes, {needed} needed", str(path), _AGAIN)
    return tensors


def _type_name(number: int) -> str:
    import gguf

    try:
        return str(gguf.GGMLQuantizationType(number).name)
    except ValueError:
        return str(number)


def _size_bytes(where: str, type_name: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor. Raises SourceError for rows that are not a multiple of the block size."""
    import gguf

    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    if not shape or shape[-1] % block:
        raise SourceError(f"shape {list(shape)} does not divide into {type_name}'s blocks of {block}", where, _AGAIN)
    return math.prod(shape) // int(block) * int(block_bytes)


def _shortest(value: float) -> float:
    """Return the shortest decimal that equals this fp32 number: 1e-05 rather than 9.99999974738e-06."""
    return float(str(np.float32(value)))


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


KEPT = ("Q8_0", "Q4_0", "Q4_1", *TERNARY)
"""Types with an equivalent in TensorRT."""
KEPT_EXPERTS = ("Q8_0", "Q4_0", "Q4_1", "MXFP4")
"""Types that a mixture's experts keep, including one whose values the network itself computes."""
_BLOCK = 32


def block_matrix(raw: Array, type_name: str) -> QuantizedMatrix:
    """Return a matrix of one of the KEPT or KEPT_EXPERTS types. raw: its bytes, one row per matrix row.

    A block consists of its scale in fp16 (Q4_1: and its minimum; MXFP4: a power of two) and its codes. Four-bit codes
    are packed in pairs of columns i and i + 16, the first in the lower half. A ternary block ends with its scale.
    Source: ggml's `block_q8_0`, `block_q4_0`, `block_q4_1`, `block_mxfp4`, `block_tq1_0`, `block_tq2_0` in
    ggml-common.h.
    """
    if type_name in TERNARY:
        return _ternary(raw, type_name)
    out = len(raw)
    size = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "MXFP4": 17}[type_name]
    blocks = np.ascontiguousarray(raw).reshape(out, -1, size)
    if type_name == "MXFP4":
        return QuantizedMatrix("mxfp4", pack(_in_order(blocks[:, :, 1:])), powers_of_two(blocks[:, :, 0]))
    scales = _halves(blocks, 0)
    if type_name == "Q8_0":
        codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(out, -1)
        return QuantizedMatrix("int8", codes, scales)
    numbers = _in_order(blocks[:, :, size - _BLOCK // 2 :])
    # Codes from 0 to 15 become -8 to 7; a block's minimum is at 0.
    offsets = _halves(blocks, 2) + 8 * scales if type_name == "Q4_1" else None
    return QuantizedMatrix("int4", pack(numbers ^ 8), scales, offsets=offsets)


def _ternary(raw: Array, type_name: str) -> QuantizedMatrix:
    """Return a matrix of -1, 0 and 1 times each block's scale."""
    import gguf

    kind = gguf.GGMLQuantizationType[type_name]
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.array(raw).reshape(-1, size)
    scales = blocks[:, -2:].copy().view(np.float16).astype(np.float32).reshape(len(raw), -1)
    blocks[:, -2:] = np.array([1], np.float16).view(np.uint8)
    values = gguf.quants.dequantize(blocks, kind).reshape(len(raw), -1)
    assert values.shape[1] == scales.shape[1] * columns
    return ternary_matrix(values, scales)


def _in_order(pairs: Array) -> Array:
    """Return the four-bit codes of blocks [out, n, 16] as numbers [out, 32 n]."""
    return np.concatenate((pairs & 15, pairs >> 4), axis=2).reshape(len(pairs), -1)


def _halves(blocks: Array, start: int) -> Array:
    """Return, in fp32, the fp16 number at byte `start` of each block: [out, blocks]."""
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view(np.float16)[:, :, 0].astype(np.float32)
