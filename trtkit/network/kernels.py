"""The kernels of an engine, as TensorRT's verbose log lists them at the end of a detailed build.

An engine that is not loaded cannot be inspected, and loading takes a GPU; the log needs none. TensorRT copies the
metadata of the layers that a kernel was made of into its line: `tag_layers` puts numbers there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTING = re.compile(r"\[TRT\] \[V\] Layers:\n(.*?)\n(?:\n|\[|$)", re.DOTALL)
_LINE = re.compile(r"^Name: (?P<name>.+?), LayerType: (?P<kind>\w+), Inputs: (?P<tensors>.*?)Metadata: ?(?P<tags>.*)$")
_GRAPH = re.compile(r"_myl(\d+)_\d+$")
_PROFILE = re.compile(r" \[profile (\d+)\]")
_CODE = re.compile(r"TacticName: (\w+_0x[0-9a-f]{32}\w*)")
_TAG = re.compile(r"<(\d+)>")
_NOT_KERNELS = {"shape_call", "signal", "wait", "NoOp"}


@dataclass(frozen=True)
class EngineKernel:
    """A step of an engine. kind: TensorRT's word, such as `gemm`. layers: indices of the network's layers in it.

    code: the name of the code that TensorRT generated for it; empty if it takes code from a library.
    """

    name: str
    kind: str
    profile: int
    layers: tuple[int, ...]
    code: str = ""

    @property
    def computes(self) -> bool:
        """Whether the GPU runs it: others work out shapes, or make streams wait."""
        return self.kind not in _NOT_KERNELS


def tag_layers(network: Any) -> None:
    """Number the layers of a network that is about to be built in their metadata."""
    for index in range(network.num_layers):
        network.get_layer(index).metadata = f"<{index}>"


def kernels_of(log: str) -> tuple[EngineKernel, ...]:
    """Return the kernels that a log lists, in the order of each profile; empty if it lists none."""
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
