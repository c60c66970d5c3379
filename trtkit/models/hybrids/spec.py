"""A hybrid as data: its parts, the seams that connect them, its inputs and outputs; checks that parts fit."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trtkit.dtypes import FP32, dtype_of
from trtkit.errors import Problem, ProblemsError
from trtkit.models.weights import Weight

Dim = int | str
"""A size; a symbol (`batch`) that is known at run time; or a multiple of one (`6*batch`)."""


@dataclass(frozen=True)
class PartPort:
    """An input or output of a part.

    dtype: a type's name, or `compute`: the type that the part computes in.
    reference: path of the module in the reference model with the same output, which verify compares; empty if there is
        none. `a.b:1` is a module's second output.
    values: integers are in [0, values); 0 if the range is unknown.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "compute"
    reference: str = ""
    values: int = 0


@dataclass(frozen=True)
class OnnxPart:
    """A torch module that is exported to ONNX.

    module: `package.module:factory`, called with `arguments`; its inputs and outputs are the ports, in order.
    prefix: of the module's weights in the checkpoint; None if the factory, called with the source's `folder` too, loads
        them.
    dtype: the type it computes in; `compute` is the config's precision.
    names: beginnings of the weights' names after `prefix`, if the prefix alone would match other parts' weights too.
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
        return "onnx"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes of its weights' names in the checkpoint; none if its factory loads them."""
        return () if self.prefix is None else tuple(self.prefix + name for name in self.names)


@dataclass(frozen=True)
class NetworkPart:
    """A part that is written with the network API.

    writer: `package.module:function`, called with the part's weights (`trtkit.network.blocks.weights.Weights`),
        `model` and the inputs by name; it returns the outputs by name.
    model: the part's own spec, which the writer reads.
    weights: all weights: path inside the part, name in the checkpoint, shape.
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
        return "network"


Part = OnnxPart | NetworkPart


@dataclass(frozen=True)
class Seam:
    """A connection between parts: from `part.output` to `part.input`."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class HybridSpec:
    """A whole model. Inputs that no seam feeds are the model's; those with equal names are one input.

    parts: in execution order.
    outputs: each `part.output`; the model's output has the port's name.
    reference: `package.module:factory` of the whole model in torch, called with `folder` and the outputs' names.
    unused: regular expressions of checkpoint names that no part needs.
    has_unordered_rows: rounding may permute the rows (axis 1) of all outputs, as when they are the best proposals.
        verify pairs rows before it compares them.
    ranked: outputs sorted by score, such as labels and boxes. Lower precision swaps near ties, so verify compares them
        in plain fp32 only; it always compares the scores, and the tensors that are ranked.
    ranges: (min, opt, max) of symbols that profiles may omit; the model takes no more than the maximum.
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
        return next(part for part in self.parts if part.name == name)

    def source_of(self, part: str, port: str) -> str | None:
        """Return the `part.output` that feeds an input; None if it is an input of the model."""
        return next((seam.source for seam in self.seams if seam.target == f"{part}.{port}"), None)

    @property
    def inputs(self) -> tuple[PartPort, ...]:
        """The model's inputs, in the order of the parts and their ports."""
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


def check_spec(spec: HybridSpec) -> HybridSpec:
    """Return `spec`. Raises ProblemsError with every missing part and every seam whose ends do not fit."""
    problems = [
        *_part_problems(spec),
        *(problem for seam in spec.seams for problem in _seam_problems(spec, seam)),
        *_input_problems(spec),
        *_output_problems(spec),
    ]
    if problems:
        raise ProblemsError(f"the parts of `{spec.model_type}` do not fit together", problems)
    return spec


def shape_fault(shape: tuple[int | str, ...], wanted: tuple[int | str, ...]) -> str:
    """Return how two shapes differ, in words; empty if they do not. -1 and symbols match any size."""
    if len(shape) != len(wanted):
        return f"got rank {len(shape)}; expected rank {len(wanted)}"
    for axis, (have, want) in enumerate(zip(shape, wanted, strict=True)):
        if have != want and -1 not in (have, want):
            name = "the batch" if axis == 0 else f"axis {axis}"
            return f"{name} is {_dim(have)}; expected {_dim(want)}"
    return ""


def shape_text(shape: tuple[int | str, ...]) -> str:
    """Return a shape as text, such as `[batch, 3, 224, 224]`."""
    return f"[{', '.join('?' if dim == -1 else str(dim) for dim in shape)}]"


def _dim(dim: int | str) -> str:
    return f"`{dim}`" if isinstance(dim, str) else str(dim)


def _part_problems(spec: HybridSpec) -> Iterator[Problem]:
    """Yield names that several parts have, or several ports of one part."""
    for name, count in Counter(part.name for part in spec.parts).items():
        if count > 1:
            yield Problem(f"{count} parts are called `{name}`", fix="give each a name of its own")


def _seam_problems(spec: HybridSpec, seam: Seam) -> Iterator[Problem]:
    where = f"seam `{seam}`"
    source, target = spec.output_ports().get(seam.source), spec.input_ports().get(seam.target)
    if source is None or target is None:
        yield from _missing_ends(spec, seam)
        return
    order = [part.name for part in spec.parts]
    if order.index(seam.source.partition(".")[0]) >= order.index(seam.target.partition(".")[0]):
        yield Problem("runs backwards: its source comes after its target", where, "put the parts into another order")
    if fault := shape_fault(source.shape, target.shape):
        shapes = f"`{seam.source}` gives {shape_text(source.shape)}, `{seam.target}` expects {shape_text(target.shape)}"
        yield Problem(f"{fault}: {shapes}", where, "change one of the two ports")
    if fault := _type_fault(source, target):
        yield Problem(fault, where, "change one of the two ports: a seam casts between floating-point types only")
    if sum(other.target == seam.target for other in spec.seams) > 1:
        yield Problem(f"several seams feed `{seam.target}`", where, "keep one")


def _missing_ends(spec: HybridSpec, seam: Seam) -> Iterator[Problem]:
    """Yield the ends of a seam that do not exist, with the existing ones to choose from."""
    known = {part.name: part for part in spec.parts}
    for end, kind in ((seam.source, "outputs"), (seam.target, "inputs")):
        part, _, port = end.partition(".")
        if part not in known:
            fix = f"the parts are {', '.join(known)}"
            yield Problem(f"there is no part `{part}`", f"seam `{seam}`", fix)
            continue
        ports = [item.name for item in getattr(known[part], kind)]
        if port not in ports:
            what = f"part `{part}` has no {kind[:-1]} `{port}`"
            yield Problem(what, f"seam `{seam}`", f"its {kind} are {', '.join(ports)}")


def _type_fault(source: PartPort, target: PartPort) -> str:
    """Return how two types differ, in words; empty if they are equal or a cast is allowed."""
    have, want = (FP32 if port.dtype == "compute" else dtype_of(port.dtype) for port in (source, target))
    return "" if have == want or (have.is_float and want.is_float) else f"got type {have}; expected {want}"


def _input_problems(spec: HybridSpec) -> Iterator[Problem]:
    """Yield inputs that parts share but declare differently."""
    first = {port.name: port for port in spec.inputs}
    for part in spec.parts:
        for port in part.inputs:
            if spec.source_of(part.name, port.name) is not None:
                continue
            known = first[port.name]
            if (known.shape, known.dtype) != (port.shape, port.dtype):
                forms = f"{shape_text(known.shape)} {known.dtype} and {shape_text(port.shape)} {port.dtype}"
                fix = "describe it the same in both parts, or feed it by a seam"
                yield Problem(f"input `{port.name}` is {forms}", f"part `{part.name}`", fix)


def _output_problems(spec: HybridSpec) -> Iterator[Problem]:
    """Yield outputs that no part has."""
    known = spec.output_ports()
    for name in spec.outputs:
        if name not in known:
            yield Problem(f"no part gives output `{name}`", fix=f"known: {', '.join(known)}")
    if not spec.outputs:
        yield Problem("the model has no outputs", fix="name them in `outputs`")
