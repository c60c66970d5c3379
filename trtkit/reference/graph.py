"""Read a TensorRT network into nodes and numbered tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import from_tensorrt
from trtkit.reference.layer import TensorSpec

if TYPE_CHECKING:
    from trtkit.backends import Backend

MISSING = 0
"""The slot of an optional input that is left out."""


@dataclass(frozen=True, eq=False)
class Node:
    """One layer and the slots of its tensors, `MISSING` for inputs left out.

    trt: the layer with its own class, or the IAttention that an attention's boundary layers belong to.
    owner: the ILoop or IIfConditional that a boundary layer belongs to.
    """

    trt: Any
    kind: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    owner: Any = None

    def __post_init__(self) -> None:
        """Strip gaps at the end of the inputs."""
        inputs = self.inputs
        while inputs and inputs[-1] == MISSING:
            inputs = inputs[:-1]
        object.__setattr__(self, "inputs", inputs)


@dataclass(frozen=True)
class Graph:
    """A whole network. specs: indexed by slot. inputs, outputs: slots in the network's order."""

    nodes: tuple[Node, ...]
    specs: tuple[TensorSpec | None, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    shapes: dict[int, tuple[int, ...]]


@dataclass
class _Slots:
    """Numbers tensors. TensorRT's Python objects keep their identity only while they are held."""

    held: list[Any] = field(default_factory=lambda: [None])
    specs: list[TensorSpec | None] = field(default_factory=lambda: [None])
    by_id: dict[int, int] = field(default_factory=dict)

    def of(self, tensor: Any) -> int:
        """Return the tensor's slot."""
        if tensor is None:
            return MISSING
        slot = self.by_id.get(id(tensor))
        if slot is None:
            slot = self.by_id[id(tensor)] = len(self.held)
            self.held.append(tensor)
            self.specs.append(_spec(slot, tensor))
        return slot


def _spec(slot: int, tensor: Any) -> TensorSpec:
    """Read a tensor's name and type."""
    is_shape = tensor.is_shape_tensor and not tensor.is_execution_tensor
    return TensorSpec(slot, tensor.name, from_tensorrt(tensor.dtype.name), is_shape)


def read_graph(backend: Backend, network: Any) -> Graph:
    """Read every layer and tensor of an INetworkDefinition once."""
    slots = _Slots()
    input_tensors = [network.get_input(index) for index in range(network.num_inputs)]
    inputs = tuple(slots.of(tensor) for tensor in input_tensors)
    shapes = {slot: tuple(tensor.shape) for slot, tensor in zip(inputs, input_tensors, strict=True)}
    nodes = tuple(_read_node(backend, network.get_layer(index), slots) for index in range(network.num_layers))
    outputs = tuple(slots.of(network.get_output(index)) for index in range(network.num_outputs))
    return Graph(_join_attention(nodes), tuple(slots.specs), inputs, outputs, shapes)


def _read_node(backend: Backend, untyped: Any, slots: _Slots) -> Node:
    """Read one layer. Activation and pooling layers hide the layer's type behind a `type` of their own."""
    kind = backend.layer_type(untyped)
    layer = backend.typed(untyped)
    if kind.startswith("ATTENTION"):
        layer = layer.attention
    owner = next((getattr(layer, name) for name in ("loop", "conditional") if hasattr(layer, name)), None)
    return Node(
        layer,
        kind,
        untyped.name,
        tuple(slots.of(untyped.get_input(index)) for index in range(untyped.num_inputs)),
        tuple(slots.of(untyped.get_output(index)) for index in range(untyped.num_outputs)),
        owner,
    )


def _join_attention(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Make one node of the two layers of each attention: its inputs come from the first, its output from the second."""
    starts = {id(node.trt): node for node in nodes if node.kind == "ATTENTION_INPUT"}
    joined = []
    for node in nodes:
        if node.kind == "ATTENTION_OUTPUT":
            inputs = starts[id(node.trt)].inputs
            joined.append(Node(node.trt, "ATTENTION", node.trt.name, inputs, node.outputs))
        elif node.kind != "ATTENTION_INPUT":
            joined.append(node)
    return tuple(joined)
