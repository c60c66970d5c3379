"""Write the parts of a hybrid as one network: ONNX parts parsed first, then the network API on their tensors."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import dtype_of
from trtkit.errors import NetworkError
from trtkit.models.hybrids.spec import NetworkPart, OnnxPart, shape_fault, shape_text
from trtkit.network.blocks.weights import Weights
from trtkit.network.graph import Graph, Tensor
from trtkit.network.lowering.sampling import GRID_SAMPLE
from trtkit.network.onnx.parse import check_grid_samples, parse_onnx
from trtkit.network.ops.arithmetic import cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.dtypes import DType
    from trtkit.models.hybrids.spec import HybridSpec, Part, PartPort
    from trtkit.network.host_array import Array


@dataclass(frozen=True)
class Material:
    """Sources of the parts of one network.

    dtype: the type that `compute` means. arrays: weights by `part.path`. onnx: the file with all ONNX parts of this
    network, None if there are none; its tensors are named by `input_name` and as `part.output`. grid_samples: node and
    mode, to check the parser. form: of sampling ops that the network API writes. severity: the lowest that TensorRT
    logs; None for the default of parser and builder.
    """

    dtype: DType
    arrays: Mapping[str, Array]
    onnx: Path | None = None
    grid_samples: Sequence[tuple[str, str]] = ()
    form: str = GRID_SAMPLE
    severity: str | None = None


@dataclass(frozen=True, eq=False)
class StageNetwork:
    """A network of several parts.

    parts: number of layers of each, in order.
    tensors: the network's name of every `part.output`.
    held: objects that must live as long as the network.
    """

    graph: Graph
    parts: Mapping[str, int]
    tensors: Mapping[str, str]
    held: tuple[Any, ...] = field(default=(), repr=False)


def input_name(spec: HybridSpec, part: str, port: str) -> str:
    """Return an input's name in every network: the model's own name, or the `part.output` that feeds it."""
    return spec.source_of(part, port) or port


def port_dtype(port: PartPort, part: Part, dtype: DType) -> DType:
    """Return a port's type. dtype: the config's precision."""
    part_dtype = dtype if part.dtype == "compute" else dtype_of(part.dtype)
    return part_dtype if port.dtype == "compute" else dtype_of(port.dtype)


def write_stage(backend: Backend, spec: HybridSpec, names: Sequence[str], material: Material) -> StageNetwork:
    """Write the parts `names` as one network with inputs from other parts and outputs for them.

    Inputs and outputs are named by `input_name`; the model's own outputs after their ports.
    Raises NetworkError, naming the seam, for tensors that do not match their ports.
    """
    parts = [spec.part(name) for name in names]
    _check_order(spec, parts)
    writer = _NetworkWriter(backend, spec, material, parts)
    for part in parts:
        writer.add(part)
    writer.finish()
    output_names = {f"{part.name}.{port.name}" for part in parts for port in part.outputs}
    tensors = {name: writer.tensors[name].name for name in output_names}
    return StageNetwork(writer.graph, writer.layers, tensors, writer.held)


class _NetworkWriter:
    """A network under construction, and its tensors by name."""

    def __init__(self, backend: Backend, spec: HybridSpec, material: Material, parts: Sequence[Part]) -> None:
        self.spec, self.material, self.parts = spec, material, parts
        self.held: tuple[Any, ...] = ()
        self.tensors: dict[str, Tensor] = {}
        self.layers: dict[str, int] = {}
        if material.onnx is None:
            self.graph = Graph(backend, severity=material.severity)
            return
        parsed = parse_onnx(backend, material.onnx, material.severity or "WARNING")
        check_grid_samples(backend, parsed, material.grid_samples)
        self.graph, self.held = Graph(backend, parsed.definition, parsed.builder), (parsed,)
        self._take_parsed()

    def add(self, part: Part) -> None:
        """Add a part; for a parsed one, check its outputs."""
        before = self.graph.network.num_layers
        if isinstance(part, NetworkPart):
            self._write(part)
            self.layers[part.name] = self.graph.network.num_layers - before
        else:
            self.layers.setdefault(part.name, before if not self.layers else 0)
        for port in part.outputs:
            self._check_output(part, port)

    def finish(self) -> None:
        """Mark the outputs: the model's own, and those that other networks read."""
        inside = {part.name for part in self.parts}
        for name in self.spec.outputs:
            part, _, port = name.partition(".")
            if part in inside:
                wanted = port_dtype(self.spec.output_ports()[name], self.spec.part(part), self.material.dtype)
                self.graph.output(cast(self.tensors[name], wanted), port)
        taken = [seam.source for seam in self.spec.seams if seam.target.partition(".")[0] not in inside]
        for name in dict.fromkeys(taken):
            part = name.partition(".")[0]
            if part in inside:
                wanted = port_dtype(self.spec.output_ports()[name], self.spec.part(part), self.material.dtype)
                self.graph.output(cast(self.tensors[name], wanted), name)

    def _take_parsed(self) -> None:
        """Record inputs and outputs of the parsed network; its outputs become inner tensors."""
        network = self.graph.network
        for tensor in [network.get_input(index) for index in range(network.num_inputs)]:
            self.tensors[tensor.name] = self.graph.tensor(tensor)
        outputs = [network.get_output(index) for index in range(network.num_outputs)]
        for tensor in outputs:
            name = tensor.name
            network.unmark_output(tensor)
            tensor.name = name.replace(".", "/", 1)  # a cast of it may become the output of that name
            self.tensors[name] = self.graph.tensor(tensor)

    def _write(self, part: NetworkPart) -> None:
        """Let a part's writer continue the network."""
        module, _, function = part.writer.partition(":")
        write = getattr(importlib.import_module(module), function)
        dtype = self.material.dtype if part.dtype == "compute" else dtype_of(part.dtype)
        with self.graph.scope(part.name):
            inputs = {port.name: self._input(part, port) for port in part.inputs}
            weights = Weights(self.graph, self.material.arrays, dtype, form=self.material.form)
            written = write(weights, part.model, inputs)
        missing = [port.name for port in part.outputs if port.name not in written]
        if missing:
            raise NetworkError(f"the writer gives no output `{missing[0]}`", f"part `{part.name}`")
        self.tensors |= {f"{part.name}.{port.name}": written[port.name] for port in part.outputs}

    def _input(self, part: NetworkPart, port: PartPort) -> Tensor:
        """Return an input in the type that the part needs: an existing tensor, or a new network input."""
        name = input_name(self.spec, part.name, port.name)
        wanted = port_dtype(port, part, self.material.dtype)
        if name not in self.tensors:
            dtype = self._source_dtype(name, wanted)
            shape = tuple(dim if isinstance(dim, int) else -1 for dim in port.shape)
            self.tensors[name] = self.graph.input(name, dtype, shape)
            _name_dimensions(self.tensors[name], port)
        tensor = self.tensors[name]
        where = f"seam `{name} -> {part.name}.{port.name}`" if "." in name else f"input `{name}`"
        _check_shape(tensor.shape, port, where)
        return cast(tensor, wanted)

    def _source_dtype(self, name: str, wanted: DType) -> DType:
        """Return the type of a tensor from another network; the model's own inputs have the requested type."""
        source = self.spec.output_ports().get(name)
        if source is None:
            return wanted
        return port_dtype(source, self.spec.part(name.partition(".")[0]), self.material.dtype)

    def _check_output(self, part: Part, port: PartPort) -> None:
        """Check a part's output against its port. Raises NetworkError."""
        name = f"{part.name}.{port.name}"
        seams = [str(seam) for seam in self.spec.seams if seam.source == name]
        where = f"seam `{seams[0]}`" if seams else f"output `{name}`"
        if name not in self.tensors:
            raise NetworkError("the parsed model does not give it", where, "export the part with its ports' names")
        tensor = self.tensors[name]
        _check_shape(tensor.shape, port, where)
        wanted = port_dtype(port, part, self.material.dtype)
        if tensor.dtype.is_float != wanted.is_float:
            what = f"type {tensor.dtype} is given, the port says {wanted}"
            raise NetworkError(what, where, "change the port: only floating-point types are cast")


def _check_shape(shape: tuple[int, ...], port: PartPort, where: str) -> None:
    """Raise NetworkError if a tensor's shape does not match its port."""
    wanted = tuple(
        dim if isinstance(dim, int) or have != -1 else -1
        for dim, have in zip(port.shape, (*shape, *[0] * len(port.shape)), strict=False)
    )
    if fault := shape_fault(shape, wanted):
        shapes = f"the tensor is {shape_text(shape)}, the port says {shape_text(port.shape)}"
        fix = "give the part inputs of the size that the model was described for, or change the port"
        raise NetworkError(f"{fault}: {shapes}", where, fix)


def _check_order(spec: HybridSpec, parts: Sequence[Part]) -> None:
    """Refuse an ONNX part after a part of the network API: TensorRT parses only into empty networks."""
    written = {part.name for part in parts if isinstance(part, NetworkPart)}
    for part in (part for part in parts if isinstance(part, OnnxPart)):
        for port in part.inputs:
            source = spec.source_of(part.name, port.name)
            if source is not None and source.partition(".")[0] in written:
                what = f"ONNX part `{part.name}` follows one that the network API writes: it cannot be parsed after it"
                fix = "set `compose: chained`, which gives each part an engine"
                raise NetworkError(what, f"seam `{source} -> {part.name}.{port.name}`", fix)


def _name_dimensions(tensor: Tensor, port: PartPort) -> None:
    """Name an input's axes after their symbols: TensorRT takes equal names for equal sizes.

    Without this, TensorRT-RTX 1.7.1 fails to build layers that join tensors of two inputs (`_Map_base::at`).
    """
    for axis, dim in enumerate(port.shape):
        if isinstance(dim, str) and "*" not in dim:
            tensor.trt.set_dimension_name(axis, dim)
