"""What a hybrid is made of, as data: parts, the seams between them, its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.weights import Weight

Dim = int | str
"""A size; a symbol (`batch`), known at run time; or a multiple of one (`6*batch`)."""


@dataclass(frozen=True)
class PartPort:
    """A tensor that a part takes or gives.

    dtype: a type's name, or `compute`: the type that its part computes in.
    reference: path of the module in the reference model whose output this is, empty if there is none; verify
        compares the two. `a.b:1` is its second output.
    values: of integers: how many there are, from 0 on; 0 where that is not known.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "compute"
    reference: str = ""
    values: int = 0


@dataclass(frozen=True)
class OnnxPart:
    """A piece of a torch module that is exported to ONNX.

    module: `package.module:factory`, called with `arguments`; its inputs and outputs are the ports, in order.
    prefix: what precedes the module's weights in the checkpoint; None if the factory loads them itself and is
        called with the source's `folder` too.
    dtype: the type it computes in; `compute` is the config's precision.
    names: what the module's own weights begin with, where the prefix alone would take others too.
    """

    name: str
    inputs: tuple[PartPort, ...]
    outputs: tuple[PartPort, ...]
    module: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    prefix: str | None = ""
    dtype: str = "compute"
    names: tuple[str, ...] = ("",)

    @property
    def kind(self) -> Literal["onnx"]:
        """How the part becomes layers."""
        return "onnx"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What its weights' names in the checkpoint begin with; nothing if its factory loads them itself."""
        return () if self.prefix is None else tuple(self.prefix + name for name in self.names)


@dataclass(frozen=True)
class NetworkPart:
    """A piece that the network API writes.

    writer: `package.module:function`, called with the part's weights (`trtkit.network.blocks.weights.Weights`),
        `model` and its inputs by name; it returns its outputs by name.
    model: what the writer reads: a spec of its own.
    weights: every weight by its path inside the part, its name in the checkpoint and its shape.
    dtype: the type it computes in; `compute` is the config's precision.
    """

    name: str
    inputs: tuple[PartPort, ...]
    outputs: tuple[PartPort, ...]
    writer: str
    model: Any
    weights: tuple[Weight, ...] = ()
    dtype: str = "compute"

    @property
    def kind(self) -> Literal["network"]:
        """How the part becomes layers."""
        return "network"


Part = OnnxPart | NetworkPart


@dataclass(frozen=True)
class Seam:
    """A tensor that passes from one part to another: `part.output` to `part.input`."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class HybridSpec:
    """A whole model. Inputs that no seam feeds are the model's own; equal names are one input.

    parts: in the order that they run in.
    outputs: `part.output` each; the model's output has the port's name.
    reference: `package.module:factory` of the whole model in torch, called with `folder` and the outputs' names.
    unused: regular expressions of checkpoint names that no part needs.
    has_unordered_rows: rows (axis 1) of all outputs together come in an order that rounding may change: of the best
        proposals, for example. Verify pairs rows before it compares.
    ranked: outputs that say what lies at the best scores. Rounding to lower precision swaps near ties, so verify
        compares them in plain fp32 only; the scores themselves, and what they rank, it compares always.
    ranges: (least, usual, most) sizes of symbols that profiles need not name; the model takes no more than the most.
    """

    model_type: str
    parts: tuple[Part, ...]
    seams: tuple[Seam, ...]
    outputs: tuple[str, ...]
    reference: str = "trtkit.sources.huggingface.vision:from_folder"
    unused: tuple[str, ...] = ()
    has_unordered_rows: bool = False
    ranked: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)

    def part(self, name: str) -> Part:
        """Return the part of a name."""
        return next(part for part in self.parts if part.name == name)

    def source_of(self, part: str, port: str) -> str | None:
        """Return the `part.output` that feeds an input, None if it is an input of the model."""
        return next((seam.source for seam in self.seams if seam.target == f"{part}.{port}"), None)

    @property
    def inputs(self) -> tuple[PartPort, ...]:
        """The model's own inputs, in the order that parts name them."""
        ports: dict[str, PartPort] = {}
        for part in self.parts:
            for port in part.inputs:
                if self.source_of(part.name, port.name) is None:
                    ports.setdefault(port.name, port)
        return tuple(ports.values())

    def output_ports(self) -> dict[str, PartPort]:
        """Return every part's outputs by `part.output`."""
        return {f"{part.name}.{port.name}": port for part in self.parts for port in part.outputs}

    def input_ports(self) -> dict[str, PartPort]:
        """Return every part's inputs by `part.input`."""
        return {f"{part.name}.{port.name}": port for part in self.parts for port in part.inputs}
