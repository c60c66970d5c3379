"""What fusion saves: tensors of a network that never reach memory, by the kernels listed in TensorRT's log."""

from __future__ import annotations

import mmap
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trtkit.network.record import LayerRecord, NetworkRecord

_BLOCK = re.compile(r"\.\d+(?=/|$)")
_ENDING = re.compile(r"_myl\d+_\d+$")


@dataclass(frozen=True)
class FusedKernel:
    """A kernel with the names of its layers. A layer in several kernels counts towards the first.

    code: name of the code that TensorRT generated for it, if any. bytes_apart: what its layers would read and write as
    a kernel each. bytes_saved: the part of that which stays inside the kernel.
    """

    name: str
    kind: str
    code: str
    layers: tuple[str, ...]
    flops: int
    bytes_apart: int
    bytes_saved: int


@dataclass(frozen=True)
class Fusion:
    """A profile's network as kernels. phase: `prefill` (`mixed` if packed) or `decode` of a language model or its head.

    shapes: of its inputs, at which bytes are counted.
    absent: layers in no kernel: constants, views, and those that TensorRT folded.
    bytes_apart: what the other layers would read and write as a kernel each; bytes_saved: the part of that which stays
        inside kernels.
    generated_kernels: pieces of code that TensorRT generated; confirmed_kernels: how many of them the plan contains.
    ranks: that share the model; the kernels are those of rank 0.
    """

    stage: str
    phase: str
    shapes: dict[str, tuple[int, ...]]
    layers: int
    kernels: tuple[FusedKernel, ...]
    absent: tuple[str, ...]
    bytes_apart: int
    bytes_saved: int
    generated_kernels: int = 0
    confirmed_kernels: int = 0
    ranks: int = 1

    @property
    def title(self) -> str:
        """The stage, the phase, and the rank if there are several."""
        rank = f"rank 0 of {self.ranks}" if self.ranks > 1 else ""
        return ", ".join(filter(None, (self.stage, self.phase, rank)))


def fuse(stage: str, network: NetworkRecord, kernels: Sequence[EngineKernel], phase: str = "") -> Fusion:
    """Return the fusion of one profile's kernels over a network described at its shapes."""
    computing = [replace(kernel, layers=_with_inputs(kernel.layers, network)) for kernel in kernels if kernel.computes]
    of_layer: dict[int, set[int]] = defaultdict(set)
    for number, kernel in enumerate(computing):
        for index in kernel.layers:
            of_layer[index].add(number)
    saved = _Traffic(network, of_layer).saved()
    first = {index: min(numbers) for index, numbers in of_layer.items()}
    fused = []
    for number, kernel in enumerate(computing):
        own_layers = [index for index in kernel.layers if first[index] == number]
        layers = [network.layers[index] for index in own_layers]
        fused.append(
            FusedKernel(
                kernel.name,
                kernel.kind,
                kernel.code,
                tuple(network.layers[index].name for index in kernel.layers),
                sum(layer.flops for layer in layers),
                sum(layer.bytes_moved for layer in layers),
                sum(saved[index] for index in own_layers),
            )
        )
    absent = tuple(layer.name for index, layer in enumerate(network.layers) if index not in of_layer)
    apart = sum(kernel.bytes_apart for kernel in fused)
    return Fusion(stage, phase, network.shapes, len(network.layers), tuple(fused), absent, apart, sum(saved))


def compare_with_plan(fusion: Fusion, plan: Path) -> Fusion:
    """Return the fusion with the number of its generated kernels in a plan: their names contain a hash of the code."""
    codes = {kernel.code for kernel in fusion.kernels if kernel.code}
    with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        confirmed = sum(data.find(code.encode()) >= 0 for code in codes)
    return replace(fusion, generated_kernels=len(codes), confirmed_kernels=confirmed)


def _with_inputs(indices: Sequence[int], network: NetworkRecord) -> tuple[int, ...]:
    """Add the first layer of each attention, which TensorRT does not list: an attention is two layers of one name."""
    names = {network.layers[index].name for index in indices}
    halves = (
        index
        for index, layer in enumerate(network.layers)
        if layer.type == "ATTENTION_INPUT" and layer.name.removesuffix("Input") + "Output" in names
    )
    return tuple(dict.fromkeys((*indices, *halves)))


class _Traffic:
    """Writers and readers of each tensor, looking through layers that are in no kernel."""

    def __init__(self, network: NetworkRecord, of_layer: Mapping[int, set[int]]) -> None:
        self._layers, self._of_layer = network.layers, of_layer
        self._outputs = {tensor.name for tensor in network.outputs}
        self._makers = {tensor.name: index for index, layer in enumerate(network.layers) for tensor in layer.outputs}
        self._readers: dict[str, list[int]] = defaultdict(list)
        for index, layer in enumerate(network.layers):
            for tensor in layer.inputs:
                self._readers[tensor.name].append(index)
        self._sources: dict[str, set[int]] = {}
        for layer in network.layers:
            for tensor in layer.outputs:
                self._sources[tensor.name] = self._makers_of(tensor.name)
        self._sinks: dict[str, list[set[int]]] = {}
        for layer in reversed(network.layers):
            for tensor in layer.outputs:
                self._sinks[tensor.name] = self._read_by(tensor.name)

    def saved(self) -> list[int]:
        """Return, per layer, the bytes that it does not move as another layer of its kernel writes or reads them."""
        return [self._saved(index, layer) for index, layer in enumerate(self._layers)]

    def _saved(self, index: int, layer: LayerRecord) -> int:
        own_kernels = self._of_layer.get(index)
        if not own_kernels:
            return 0
        reads = sum(tensor.size_bytes for tensor in layer.inputs if own_kernels & self._sources.get(tensor.name, set()))
        return reads + sum(tensor.size_bytes for tensor in layer.outputs if self._stays(tensor.name, own_kernels))

    def _stays(self, name: str, own_kernels: set[int]) -> bool:
        """Whether all readers of a tensor are in a kernel that writes it."""
        return name not in self._outputs and all(own_kernels & kernels for kernels in self._sinks[name])

    def _makers_of(self, name: str) -> set[int]:
        """Return the kernels that write a tensor; none for constants and inputs."""
        maker = self._makers.get(name)
        if maker is None:
            return set()
        own_kernels = self._of_layer.get(maker)
        return own_kernels or _union(self._sources.get(tensor.name, set()) for tensor in self._layers[maker].inputs)

    def _read_by(self, name: str) -> list[set[int]]:
        """Return the kernels of each reader of a tensor; an empty set if it is an output."""
        readers: list[set[int]] = []
        for reader in self._readers[name]:
            if own_kernels := self._of_layer.get(reader):
                readers.append(own_kernels)
                continue
            for tensor in self._layers[reader].outputs:
                readers += [set()] if tensor.name in self._outputs else self._sinks.get(tensor.name, [])
        return readers


def _union(sets: Iterable[set[int]]) -> set[int]:
    return set().union(*sets)


@dataclass(frozen=True)
class KernelGroup:
    """Kernels of the same layers in repeated blocks. text: those layers, with `layers.*` for `layers.7`."""

    count: int
    kind: str
    text: str
    flops: int
    bytes_apart: int
    bytes_saved: int


def grouped(fusion: Fusion) -> list[KernelGroup]:
    """Return a fusion's kernels, grouped over repeated blocks, in the order of the first of each group."""
    groups: dict[tuple[str, str], list[FusedKernel]] = defaultdict(list)
    for kernel in fusion.kernels:
        groups[kernel.kind, _text(kernel)].append(kernel)
    return [
        KernelGroup(
            len(kernels),
            kind,
            text,
            sum(kernel.flops for kernel in kernels),
            sum(kernel.bytes_apart for kernel in kernels),
            sum(kernel.bytes_saved for kernel in kernels),
        )
        for (kind, text), kernels in groups.items()
    ]


def _text(kernel: FusedKernel) -> str:
    """Return a description of a kernel's layers: up to two names per scope, else their number."""
    scopes: dict[str, list[str]] = defaultdict(list)
    for name in sorted(dict.fromkeys(_BLOCK.sub(".*", name) for name in kernel.layers)):
        scope, _, last = name.rpartition("/")
        scopes[scope].append(last)
    if not scopes:
        return f"added by TensorRT: {_ENDING.sub('', kernel.name)}"
    words = []
    for scope, names in scopes.items():
        if scope and len(names) > 2:
            words.append(f"{scope} ({len(names)} layers)")
        else:
            words += [f"{scope}/{name}" if scope else name for name in names]
    return ", ".join(words)


_LISTING = re.compile(r"\[TRT\] \[V\] Layers:\n(.*?)\n(?:\n|\[|$)", re.DOTALL)
_LINE = re.compile(r"^Name: (?P<name>.+?), LayerType: (?P<kind>\w+), Inputs: (?P<tensors>.*?)Metadata: ?(?P<tags>.*)$")
_GRAPH = re.compile(r"_myl(\d+)_\d+$")
_PROFILE = re.compile(r" \[profile (\d+)\]")
_CODE = re.compile(r"TacticName: (\w+_0x[0-9a-f]{32}\w*)")
_TAG = re.compile(r"<(\d+)>")
_NOT_KERNELS = {"shape_call", "signal", "wait", "NoOp"}


@dataclass(frozen=True)
class EngineKernel:
    """A step of an engine. kind: TensorRT's term, such as `gemm`. layers: indices of its layers in the network.

    code: name of the code that TensorRT generated for it; empty if the code is from a library.
    """

    name: str
    kind: str
    profile: int
    layers: tuple[int, ...]
    code: str = ""

    @property
    def computes(self) -> bool:
        """Whether it runs on the GPU; other steps compute shapes or synchronize streams."""
        return self.kind not in _NOT_KERNELS


def tag_layers(network: Any) -> None:
    """Store each layer's number in its metadata, before the network is built."""
    for index in range(network.num_layers):
        network.get_layer(index).metadata = f"<{index}>"


def kernels_of(log: str) -> tuple[EngineKernel, ...]:
    """Return the kernels listed in a log, in each profile's order; empty if it lists none.

    An engine must be loaded to be inspected, which takes a GPU; the log does not. TensorRT copies the metadata of a
    kernel's layers into its log line, where `tag_layers` puts their numbers.
    """
    return tuple(kernel for listing in _LISTING.finditer(log) for kernel in _kernels(listing[1].splitlines()))


def _kernels(lines: list[str]) -> Iterator[EngineKernel]:
    """Yield the kernels of one listing. Only some lines name their profile; those of one compiled graph share it."""
    matches = [match for line in lines if (match := _LINE.match(line))]
    profiles: dict[str, int] = {}
    for match in matches:
        if profile := _PROFILE.search(match[0]):
            profiles[_graph(match["name"])] = int(profile[1])
    for match in matches:
        tags = dict.fromkeys(int(tag) for tag in _TAG.findall(match["tags"]))
        name = _PROFILE.sub("", match["name"])
        code = _CODE.search(match["tensors"])
        yield EngineKernel(
            name, match["kind"], profiles.get(_graph(match["name"]), 0), tuple(tags), "" if code is None else code[1]
        )


def _graph(name: str) -> str:
    """Return which of the engine's compiled graphs a kernel belongs to."""
    match = _GRAPH.search(name)
    return match[1] if match else ""
