"""A network's layers as a file, for the reference executor, without TensorRT and the model's source.

`NAME.json` lists tensors and layers by number; `NAME.weights` holds the weights one after another. Weights that are
unchanged bytes of the model's own files stay there and are mapped from them.
"""

from __future__ import annotations

import bisect
import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import DTYPES
from trtkit.errors import BundleError
from trtkit.files import read_text
from trtkit.network.layer_graph import LayerGraph, LayerNode, LayerWeights, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from trtkit.network.layer_graph import Attribute, Bytes

LAYERS_VERSION = 1
_ALIGNMENT = 64  # bytes; the strictest alignment that torch's kernels need
_OWN = -1
_WORTH_MAPPING = 0.1
"""The share of the weights that sources must hold; below it, a bundle keeps all weights itself."""
_EMPTY: list[Any] = [(), (), {}, {}, 0]
"""A layer's fields after kind and name if all are empty: inputs, outputs, attributes, weights, construct."""
_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class LayerFiles:
    """Paths of a layer file. weights: absent if all weights are in the sources. sources: of the model, in order."""

    layers: Path
    sources: Sequence[Path]

    @property
    def weights(self) -> Path:
        """The file with the weights that no source has."""
        return self.layers.with_suffix("").with_suffix(".weights")


def save_layers(graph: LayerGraph, files: LayerFiles) -> tuple[int, ...]:
    """Write a network's layers; return the indices of the sources that hold some of its weights. Raises OSError."""
    mapped = _MappedSources(files.sources)
    held = [weights.raw for node in graph.nodes for weights in node.weights.values()]
    in_sources = sum(raw.nbytes for raw in held if mapped.find(raw) is not None)
    if in_sources < _WORTH_MAPPING * sum(raw.nbytes for raw in held):
        mapped = _MappedSources(())
    with files.weights.open("wb") as weights:
        writer = _WeightsWriter(weights, mapped)
        layers = [_encoded(node, writer) for node in graph.nodes]
    if not writer.size:
        files.weights.unlink()
    data = {
        "version": LAYERS_VERSION,
        "library": graph.library,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "tensors": [[s.name, s.dtype.name, s.is_shape, s.shape] for s in graph.specs[1:] if s is not None],
        "layers": layers,
    }
    files.layers.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    return tuple(sorted(writer.sources))


def load_layers(files: LayerFiles) -> tuple[LayerGraph, frozenset[int]]:
    """Return a network's layers with mapped weights, and the indices of the sources that hold some of them.

    The caller checks that the files are unchanged. Raises BundleError for a file that is unreadable, was written by
    another version, or points outside its weights.
    """
    try:
        data = json.loads(read_text(files.layers))
        if data["version"] != LAYERS_VERSION:
            what = f"unsupported version {data['version']!r} of a network's layers; expected {LAYERS_VERSION}"
            raise BundleError(what, str(files.layers), "build the bundle again")
        reader = _WeightsReader(files)
        specs = [_spec(index, *row) for index, row in enumerate(data["tensors"], 1)]
        nodes = tuple(_node(row, reader, len(specs)) for row in data["layers"])
        inputs, outputs = (tuple(map(int, data[name])) for name in ("inputs", "outputs"))
        _check_slots([*inputs, *outputs], len(specs), 1)
        library = str(data["library"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        where = getattr(error, "filename", None) or files.layers
        what = f"the network's layers cannot be read: {reason}"
        raise BundleError(what, str(where), "build the bundle again") from None
    return LayerGraph(nodes, (None, *specs), inputs, outputs, library), frozenset(reader.read - {_OWN})


def _encoded(node: LayerNode, writer: _WeightsWriter) -> list[Any]:
    """Return a layer in JSON form; empty fields at the end are left out."""
    weights = {key: [held.dtype.name, held.count, *writer.locate(held.raw)] for key, held in node.weights.items()}
    row = [node.kind, node.name, node.inputs, node.outputs, dict(node.attributes), weights, node.construct]
    while not row[-1]:
        row.pop()
    return row


def _node(row: list[Any], reader: _WeightsReader, tensors: int) -> LayerNode:
    kind, name, inputs, outputs, attributes, weights, construct = [*row, *_EMPTY[len(row) - 2 :]]
    _check_slots(inputs, tensors, 0)
    _check_slots(outputs, tensors, 1)
    held = {key: reader.weights(*location) for key, location in weights.items()}
    return LayerNode(kind, name, tuple(inputs), tuple(outputs), _attributes(attributes), held, construct)


def _attributes(data: dict[str, Any]) -> dict[str, Attribute]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def _spec(index: int, name: str, dtype: str, is_shape: bool, shape: list[int] | None) -> TensorSpec:
    return TensorSpec(index, name, DTYPES[dtype], is_shape, None if shape is None else tuple(shape))


def _check_slots(slots: Sequence[int], tensors: int, lowest: int) -> None:
    if not all(lowest <= slot <= tensors for slot in slots):
        raise ValueError("a layer names a tensor that there is not")


class _WeightsWriter:
    """Writes each array once, unless a source has it. size: bytes written. sources: those that hold weights."""

    def __init__(self, file: IO[bytes], mapped: _MappedSources) -> None:
        self._file, self._mapped, self.size = file, mapped, 0
        self._written: dict[tuple[int, int], int] = {}
        self.sources: set[int] = set()

    def locate(self, raw: Bytes) -> tuple[int, int]:
        """Return the index of the source that holds these bytes, or `_OWN`, and their offset in that file."""
        if (location := self._mapped.find(raw)) is not None:
            self.sources.add(location[0])
            return location
        address = raw.ctypes.data
        offset = self._written.get((address, raw.nbytes))
        if offset is None:
            self._file.write(bytes(-self.size % _ALIGNMENT))
            offset = self._written[address, raw.nbytes] = self.size + -self.size % _ALIGNMENT
            self._file.write(np.ascontiguousarray(raw).data)
            self.size = offset + raw.nbytes
        return _OWN, offset


def drop_pages(graph: LayerGraph) -> None:
    """Release the memory of mapped weights to the system; they are read from their files again when needed.

    Weights changed by this process would be lost; nothing changes those from `load_layers`.
    """
    maps: dict[int, mmap.mmap] = {}
    for node in graph.nodes:
        for weights in node.weights.values():
            owner: object = weights.raw
            while isinstance(owner, np.ndarray):
                owner = owner.base
            if isinstance(owner, mmap.mmap):
                maps[id(owner)] = owner
    for memory in maps.values():
        memory.madvise(mmap.MADV_DONTNEED)


class _MappedSources:
    """This process's read-only memory maps of sources."""

    def __init__(self, sources: Sequence[Path]) -> None:
        self._numbers = {str(path.resolve()): number for number, path in enumerate(sources)}
        self._files = MappedFiles(set(self._numbers), takes_writable=False)

    def find(self, raw: Bytes) -> tuple[int, int] | None:
        """Return the source of these bytes and their offset; None if they are not mapped from a source."""
        location = self._files.find(raw)
        return None if location is None else (self._numbers[location[0]], location[1])


class MappedFiles:
    """This process's memory maps of files when it was created.

    paths: absolute, of the files to consider; None for all. takes_writable: whether to include memory that this process
    can write, which may differ from the file.
    """

    def __init__(self, paths: Collection[str] | None = None, *, takes_writable: bool = True) -> None:
        regions = _regions() if paths is None or paths else ()
        self._regions = sorted(
            (start, end, path, offset)
            for start, end, path, offset, is_writable in regions
            if (paths is None or path in paths) and (takes_writable or not is_writable)
        )

    def find(self, raw: Bytes) -> tuple[str, int] | None:
        """Return the file of these bytes and their offset; None if they are not mapped."""
        address = raw.ctypes.data
        index = bisect.bisect_right(self._regions, (address, math.inf, "", 0)) - 1
        if index < 0:
            return None
        start, end, path, offset = self._regions[index]
        return (path, offset + address - int(start)) if address + raw.nbytes <= end else None


def _regions() -> Iterator[tuple[float, float, str, int, bool]]:
    """Yield start, end, file, offset and writability of each mapped file region."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux: no maps are known
        return
    for line in lines:
        addresses, rights, offset, _device, _inode, *path = line.split(maxsplit=5)
        if path and path[0].startswith("/"):
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield start, end, path[0], int(offset, 16), "w" in rights


class _WeightsReader:
    """Maps the files of weights. read: their indices."""

    def __init__(self, files: LayerFiles) -> None:
        self._files = files
        self._memory: dict[int, Bytes] = {}

    @property
    def read(self) -> set[int]:
        """Indices of the files with weights."""
        return set(self._memory)

    def weights(self, dtype: str, count: int, source: int, offset: int) -> LayerWeights:
        """Return weights that share their file's memory. Raises ValueError outside the file."""
        if source not in self._memory:
            path = self._files.weights if source == _OWN else self._files.sources[source]
            self._memory[source] = np.memmap(path, np.uint8, "c")  # copy on write, though nothing writes
        memory, size = self._memory[source], DTYPES[dtype].size_bytes(count)
        if min(count, offset) < 0 or offset + size > memory.size:
            raise ValueError("weights lie outside their file")
        return LayerWeights(DTYPES[dtype], np.asarray(memory)[offset : offset + size], count)
