"""Write a network's layers as an ONNX model that keeps every tensor's name.

A second program can then run the network and compare any of its tensors.
"""

import graphlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from trtkit.dtypes import E8M0, FP4, FP8, FP16, FP32, INT4, INT8
from trtkit.errors import Problem, ProblemsError
from trtkit.files import replace_file, replacing
from trtkit.network.layer_graph import MISSING, Bytes, LayerGraph, LayerNode, LayerWeights, TensorSpec
from trtkit.network.onnx.care import NEWEST_IR_VERSION
from trtkit.network.onnx.layers import FUNCTIONS, REFUSED, TAKE_STORED_TYPES, WRITERS, Write
from trtkit.network.onnx.layers.layer import Emitter, NotInOnnxError, OnnxLayer, Value, onnx_type
from trtkit.version import __version__

OPSET = 26
"""The newest opset that ONNX Runtime 1.31 runs."""
DOMAIN = "trtkit"
"""Domain of the local functions."""
INLINE_LIMIT_BYTES = 512 << 20
"""Weight bytes that one file may hold. protobuf allows 2 GiB, but needs them in memory twice while writing."""
WIDER = {FP8: FP16, FP4: FP16, E8M0: FP32, INT4: INT8}
"""Types that can represent all values of the types that most ONNX operators do not take."""
_SMALL_BYTES = 1024
_ALIGNMENT = 4096  # ONNX's advice for data that is mapped


def write_onnx(graph: LayerGraph, path: Path, inline_bytes: int = INLINE_LIMIT_BYTES) -> tuple[Path, ...]:
    """Write a network to an ONNX file, its weights to `<file>.data` if they are large; return the files.

    inline_bytes: limit on all weights together for storing them in the first file.
    Raises ProblemsError for layers that ONNX cannot express, and OSError.
    """
    data = path.with_name(f"{path.name}.data")
    model, blocks = onnx_model(graph, data.name if _weight_bytes(graph) > inline_bytes else "")
    if blocks:
        with replacing(data) as file:
            for block in blocks:
                file.write(bytes(-file.tell() % _ALIGNMENT))
                file.write(block.data)
    replace_file(path, model.SerializeToString())
    return (path, data) if blocks else (path,)


def onnx_model(graph: LayerGraph, data_file: str = "") -> tuple[ModelProto, list[Bytes]]:
    """Return a network as an ONNX model.

    data_file: the file for weights above 1 KiB, which are returned: in this order, each at the next multiple of 4096.
    Assertions, which only check inputs, are left out.
    Raises ProblemsError with the first layer of every kind that ONNX cannot express.
    """
    writer = _ModelWriter(graph, data_file)
    problems: dict[str, Problem] = {}
    for node in _in_order(graph):
        try:
            writer.add(node)
        except NotInOnnxError as error:
            problems.setdefault(f"{node.kind} {error}", Problem(f"{node.kind}: {error}", f"layer `{node.name}`"))
    if problems:
        what = "ONNX cannot express some layers of this network; the first of each kind:"
        fix = "`trtkit verify BUNDLE` compares the network, without ONNX"
        raise ProblemsError(what, list(problems.values()), fix)
    return writer.model(), writer.blocks


def _weight_bytes(graph: LayerGraph) -> int:
    """Return the size of all layers' weights in one file."""
    return sum(held.raw.nbytes for node in graph.nodes for held in node.weights.values())


def _in_order(graph: LayerGraph) -> list[LayerNode]:
    """Return the layers in topological order: the network's own order if it is one."""
    producer = {slot: node for node in graph.nodes for slot in node.outputs}
    reads = {node: [producer[slot] for slot in node.inputs if slot in producer] for node in graph.nodes}
    written: set[LayerNode] = set()
    for node in graph.nodes:
        if not written.issuperset(reads[node]):
            break
        written.add(node)
    else:
        return list(graph.nodes)
    try:
        return list(graphlib.TopologicalSorter(reads).static_order())
    except graphlib.CycleError:  # a loop's, which is refused
        return list(graph.nodes)


def _unique_names(graph: LayerGraph) -> list[Value]:
    """Return the tensors' names by slot; repeated names get a number."""
    names: list[Value] = [""] * len(graph.specs)
    taken: set[str] = set()
    ends = [*graph.inputs, *graph.outputs]
    for slot in [*ends, *(slot for slot in range(1, len(names)) if slot not in set(ends))]:
        if not names[slot]:
            name = graph.spec(slot).name
            names[slot] = f"{name}#{slot}" if name in taken or not name else name
            taken.add(names[slot])
    return names


@dataclass
class _ModelWriter:
    """Collects the parts of a model. blocks: weights for the data file."""

    graph: LayerGraph
    data_file: str
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    functions: dict[bytes, FunctionProto] = field(default_factory=dict)
    blocks: list[Bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = _unique_names(self.graph)
        self._constants = {
            node.outputs[0]: node.weights.get("weights") for node in self.graph.nodes if node.kind == "CONSTANT"
        }
        self._offsets: dict[tuple[int, int], int] = {}
        self._end = 0

    def add(self, node: LayerNode) -> None:
        """Write a layer. Raises NotInOnnxError."""
        if node.kind == "ASSERTION":
            return
        if node.kind == "CONSTANT":
            self._add_constant(node)
            return
        write = WRITERS.get(node.kind)
        if write is None:
            raise NotInOnnxError(REFUSED.get(node.kind, "ONNX has no such operator"))
        if node.kind in FUNCTIONS:
            self._add_call(node, write)
            return
        values = tuple(self.names[slot] for slot in node.inputs)
        emitter = Emitter(f"{self.names[node.outputs[0]]}/")
        results = self._results(node, write, values, emitter)
        self.nodes += _named(emitter, results, [self.names[slot] for slot in node.outputs])

    def _results(self, node: LayerNode, write: Write, values: Sequence[Value], emitter: Emitter) -> list[Value]:
        """Write a layer's nodes; return its results. Types that ONNX's operators lack are widened around it."""
        slots = () if node.kind in TAKE_STORED_TYPES else (*node.inputs, *node.outputs)
        stored = {slot: spec for slot in slots if slot != MISSING and (spec := self.graph.spec(slot)).dtype in WIDER}
        specs = list(self.graph.specs)
        for slot, spec in stored.items():
            specs[slot] = replace(spec, dtype=WIDER[spec.dtype])
        inputs = tuple(
            emitter.cast(value, WIDER[stored[slot].dtype]) if slot in stored else value
            for slot, value in zip(node.inputs, values, strict=True)
        )
        graph = replace(self.graph, specs=tuple(specs)) if stored else self.graph
        results = write(OnnxLayer(node, graph, inputs, emitter, self._constants.get, self._add_weights))
        return [
            emitter.cast(value, stored[slot].dtype) if slot in stored else value
            for slot, value in zip(node.outputs, (results,) if isinstance(results, str) else results, strict=True)
        ]

    def model(self) -> ModelProto:
        """Return the model, with the type and shape of every tensor."""
        ends = {*self.graph.inputs, *self.graph.outputs}
        specs = [spec for spec in self.graph.specs[1:] if spec is not None]
        graph = helper.make_graph(
            self.nodes,
            "network",
            [self._info(self.graph.spec(slot), names_sizes=True) for slot in self.graph.inputs],
            [self._info(self.graph.spec(slot)) for slot in self.graph.outputs],
            self.initializers,
            value_info=[self._info(spec) for spec in specs if spec.index not in ends],
        )
        imports = [helper.make_opsetid("", OPSET)]
        functions = list(self.functions.values())
        if functions:
            imports.append(helper.make_opsetid(DOMAIN, 1))
        model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=NEWEST_IR_VERSION)
        model.producer_name, model.producer_version = "trtkit", __version__
        return model

    def _info(self, spec: TensorSpec, *, names_sizes: bool = False) -> ValueInfoProto:
        """Return a tensor's type and shape. names_sizes: whether to name sizes known at run time, as for inputs."""
        name, shape = self.names[spec.index], None
        if spec.shape is not None:
            free = [f"{name}.{axis}" if names_sizes else None for axis in range(len(spec.shape))]
            shape = [size if size >= 0 else free[axis] for axis, size in enumerate(spec.shape)]
        return helper.make_tensor_value_info(name, onnx_type(spec.dtype), shape)

    def _add_call(self, node: LayerNode, write: Write) -> None:
        """Write a layer as a call of a function; layers with the same body share it."""
        name, inputs = FUNCTIONS[node.kind]
        values = tuple("" if slot == MISSING else inputs[index] for index, slot in enumerate(node.inputs))
        emitter = Emitter("")
        body = _named(emitter, self._results(node, write, values, emitter), ["y"])
        arguments = [value for value in values if value]
        key = b"\n".join(
            [name.encode(), *(item.encode() for item in arguments), *map(NodeProto.SerializeToString, body)]
        )
        if key not in self.functions:
            forms = sum(function.name.partition("_")[0] == name for function in self.functions.values())
            unique = f"{name}_{forms + 1}" if forms else name
            imports = [helper.make_opsetid("", OPSET)]
            self.functions[key] = helper.make_function(DOMAIN, unique, arguments, ["y"], body, imports)
        called = [self.names[slot] for slot in node.inputs if slot != MISSING]
        output = self.names[node.outputs[0]]
        self.nodes.append(helper.make_node(self.functions[key].name, called, [output], node.name, domain=DOMAIN))

    def _add_constant(self, node: LayerNode) -> None:
        """Write a constant under its tensor's name."""
        spec, held, shape = self.graph.spec(node.outputs[0]), node.weights.get("weights"), node.attributes["shape"]
        assert isinstance(shape, tuple)
        sizes, name = [int(size) for size in shape], self.names[spec.index]
        if held is None:
            self.initializers.append(helper.make_tensor(name, onnx_type(spec.dtype), sizes, b"", raw=True))
        elif held.dtype == spec.dtype:
            self._add_weights(name, held, sizes)
        else:
            stored = self._add_weights(f"{name}/stored", held, sizes)
            self.nodes.append(helper.make_node("Cast", [stored], [name], name, to=onnx_type(spec.dtype)))

    def _add_weights(self, name: str, weights: LayerWeights, shape: Sequence[int]) -> Value:
        """Write an initializer: its bytes, or their location in the data file."""
        tensor = TensorProto(name=name, data_type=onnx_type(weights.dtype), dims=shape)
        if self.data_file and weights.raw.nbytes > _SMALL_BYTES:
            tensor.data_location = TensorProto.EXTERNAL
            location = {"location": self.data_file, "offset": self._offset(weights.raw), "length": weights.raw.nbytes}
            for key, value in location.items():
                tensor.external_data.add(key=key, value=str(value))
        else:
            tensor.raw_data = weights.raw.tobytes()
        self.initializers.append(tensor)
        return name

    def _offset(self, raw: Bytes) -> int:
        """Return the offset of bytes in the data file; layers that share them get the same."""
        key = (raw.ctypes.data, raw.nbytes)
        if key not in self._offsets:
            self._offsets[key] = self._end + -self._end % _ALIGNMENT
            self._end = self._offsets[key] + raw.nbytes
            self.blocks.append(raw)
        return self._offsets[key]


def _named(emitter: Emitter, results: Sequence[Value], outputs: Sequence[Value]) -> list[NodeProto]:
    """Return the nodes with results renamed to the outputs; a result that is an input or repeated is copied."""
    written = {name for node in emitter.nodes for name in node.output}
    renamed: dict[Value, Value] = {}
    for result, output in zip(results, outputs, strict=True):
        if result in written and result not in renamed:
            renamed[result] = output
        else:
            emitter.nodes.append(helper.make_node("Identity", [result], [output], output))
    for node in emitter.nodes:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = renamed.get(name, name)
    return emitter.nodes
