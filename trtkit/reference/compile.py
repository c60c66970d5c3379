"""Compiler from a network's layers to a program of torch closures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import torch

from trtkit.dtypes import BOOL, INT32, INT64
from trtkit.errors import ExecutionError
from trtkit.network.layer_graph import MISSING, LayerGraph, LayerNode
from trtkit.reference.constant_matrices import joined_products
from trtkit.reference.control_flow import Construct, conditional_op, live_nodes, loop_op, outermost
from trtkit.reference.gathered_rows import gathering_rows
from trtkit.reference.layer import CompileSettings, Layer, Lowered, Op
from trtkit.reference.layers import LOWERINGS, OWNING
from trtkit.reference.layers.product import constant_products
from trtkit.reference.program import Instruction, Program, failed, with_frees

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.network.layer_graph import TensorSpec
    from trtkit.reference.constant_matrices import ConstantMatrix
    from trtkit.reference.layer import Tensor
    from trtkit.reference.precision import Precision


FOLD_LIMIT_BYTES = 1 << 20
"""Limit for constant folding: larger results are computed in every run, unless they only change form."""

_CHANGES_FORM = ("CONSTANT", "SHUFFLE", "DEQUANTIZE", "CAST", "IDENTITY", "SQUEEZE", "UNSQUEEZE")
_HOST_WEIGHTS = 64  # elements of a constant that may take part in shape arithmetic
_HOST_INPUTS = {
    "ASSERTION": (0,),
    "CUMULATIVE": (1,),
    "FILL": (0, 1, 2),
    "NMS": (2, 3, 4),
    "ONE_HOT": (2,),
    "RESIZE": (1,),
    "SHUFFLE": (1,),
    "SLICE": (1, 2, 3, 4, 5),
    "SQUEEZE": (1,),
    "TOPK": (1,),
    "UNSQUEEZE": (1,),
}
"""Inputs that layers read on the host: sizes, axes and single values."""

_VIEWS = ("SHUFFLE", "SLICE", "SQUEEZE", "UNSQUEEZE")
"""Layers whose output consists of elements of the first input, selected by the other inputs' values."""

_NEVER_FOLDED = ("FILL", "ASSERTION", "KV_CACHE_UPDATE", "DIST_COLLECTIVE")


@dataclass(eq=False)
class _Unit:
    """A unit that runs as one step: a layer, or a whole loop or conditional."""

    nodes: list[LayerNode]
    construct: Construct | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    order: int


class Compiler:
    """Compiles blocks of nodes into programs; the blocks of one network share tensors and known values."""

    def __init__(self, graph: LayerGraph, settings: CompileSettings) -> None:
        self.graph, self.settings = graph, settings
        self.alias = _aliases(graph, settings.precision)
        self.known: dict[int, torch.Tensor] = {}
        self.nodes = [self._renamed(node) for node in graph.nodes if not self.alias.keys() & node.outputs]
        self.matrices: dict[LayerNode, tuple[ConstantMatrix, ...]] = {}
        if settings.packs:
            self.nodes, self.matrices = joined_products(self.nodes, graph.specs, settings.precision)
        self.owned: set[int] = set()
        self.host = {slot for slot in graph.inputs if graph.spec(slot).is_shape}
        self.joined: dict[int, JoinedConstants] = {}
        self._held = {node.outputs[0]: node.weights.get("weights") for node in graph.nodes if node.kind == "CONSTANT"}

    def slot(self, slot: int) -> int:
        """Return the slot that holds the value of `slot`."""
        while slot in self.alias:
            slot = self.alias[slot]
        return slot

    def network(self) -> Program:
        outputs = tuple(self.slot(slot) for slot in self.graph.outputs)
        return self.block(live_nodes(self.nodes, outputs), outputs)

    def block(self, nodes: list[LayerNode], outputs: tuple[int, ...]) -> Program:
        """Compile nodes, whose other inputs all come from outside, into a program that yields `outputs`."""
        units = _sorted_units(_units(nodes, set(outputs)))
        read_by = _count_readers(units, outputs)
        written = {slot for unit in units for slot in unit.outputs}
        once = {slot for slot in written if read_by.get(slot) == 1}
        drafts = [step for unit in units if (step := self._step(unit, once)) is not None]
        steps = with_frees(without_unread(drafts, outputs), outputs)
        initial: list[Any] = [None] * len(self.graph.specs)
        for slot in {slot for step in steps for slot in step.inputs}.union(outputs):
            initial[slot] = self.known.get(slot)
        return Program(tuple(steps), initial, outputs)

    def _renamed(self, node: LayerNode) -> LayerNode:
        """Return the node with its inputs' aliases resolved."""
        if self.alias.keys().isdisjoint(node.inputs):
            return node
        return replace(node, inputs=tuple(self.slot(slot) for slot in node.inputs))

    def _step(self, unit: _Unit, once: set[int]) -> Instruction | None:
        """Return the unit's step, None if its value is already known. once: slots made in this block and read once."""
        if unit.construct is not None:
            make = loop_op if unit.construct.is_loop else conditional_op
            run = make(self, unit.construct, unit.inputs, unit.outputs)
            boundary = unit.construct.boundary[0]
            return Instruction(run, run, unit.inputs, unit.outputs, (), boundary.kind, boundary.name)
        node = unit.nodes[0]
        layer = self.layer(node)
        lowered = self._lower(node, layer)
        optional = self._optional_inputs(node, layer)
        step = Instruction(lowered.run, lowered.run, node.inputs, node.outputs, (), node.kind, node.name, optional)
        if self._fold(step):
            return None
        if (joined := joined_constants(step, layer, self.known)) is not None:
            self.joined[step.outputs[0]] = joined
        if self._is_on_cpu:
            step = gathering_rows(picking(step, layer, self.joined), layer, self.settings.rows)
        if node.kind in OWNING and not lowered.is_view:
            self.owned.update(node.outputs)
        if lowered.overwrite and node.inputs[0] in self.owned & once:
            step = replace(step, fast=lowered.overwrite)
        if node.kind in _VIEWS and self._is_on_cpu:
            step = replace(step, is_view=True)
        if lowered.packed and self.settings.packs:
            step = replace(step, fast=lowered.packed)
        return step

    def _optional_inputs(self, node: LayerNode, layer: Layer) -> frozenset[int]:
        """Return the indices of a concatenation's inputs whose other axes have known nonzero sizes."""
        if node.kind != "CONCATENATION" or not self._is_on_cpu:  # elsewhere a step's inputs have fixed places
            return frozenset()
        shapes = [_spec(self.graph.specs[slot]).shape or (-1,) for slot in node.inputs]
        axis = layer.number("axis") % len(shapes[0])
        return frozenset(
            index for index, shape in enumerate(shapes) if min((*shape[:axis], *shape[axis + 1 :]), default=1) > 0
        )

    def _lower(self, node: LayerNode, layer: Layer) -> Lowered:
        """Return the node as torch code. layer: the lowerings' view of it."""
        lowering = LOWERINGS.get(node.kind)
        if lowering is None:
            raise ExecutionError(
                f"layer type {node.kind} is not known to the reference executor", node.name or "unnamed layer"
            )
        matrices = self.matrices.get(node)
        op = lowering(layer) if matrices is None else constant_products(layer, matrices)
        lowered = op if isinstance(op, Lowered) else Lowered(op)
        return lowered if self._is_on_cpu else self._on_device(node, lowered.run)

    @property
    def _is_on_cpu(self) -> bool:
        return self.settings.precision.device.type == "cpu"

    def layer(self, node: LayerNode) -> Layer:
        """Return the view of the node that lowerings read."""
        specs, settings = self.graph.specs, self.settings
        if not self._is_on_cpu and self._is_host(node):
            self.host.update(node.outputs)
            settings = replace(settings, precision=replace(settings.precision, device=torch.device("cpu")))
        return Layer(
            node,
            tuple(specs[slot] for slot in node.inputs),
            tuple(_spec(specs[slot]) for slot in node.outputs),
            tuple(self.known.get(slot) for slot in node.inputs),
            tuple(self._held.get(slot) for slot in node.inputs),
            settings,
        )

    def _is_host(self, node: LayerNode) -> bool:
        """Whether a layer is shape arithmetic: it depends only on sizes and small constants."""
        if node.kind == "SHAPE":
            return True
        if node.kind == "CONSTANT":
            return sum(held.count for held in node.weights.values()) <= _HOST_WEIGHTS
        specs = [_spec(self.graph.specs[slot]) for slot in node.outputs]
        if specs and all(spec.is_shape and spec.dtype in (BOOL, INT32, INT64) for spec in specs):
            return True
        is_random = node.kind == "FILL" and node.attributes.get("operation") != "LINSPACE"
        inputs = [slot for slot in node.inputs if slot != MISSING]
        return node.kind in LOWERINGS and not is_random and bool(inputs) and self.host.issuperset(inputs)

    def _on_device(self, node: LayerNode, run: Op) -> Lowered:
        """Return `run` with each input moved to the device where the layer reads it; known inputs are moved now."""
        if node.kind == "SHAPE":
            return Lowered(run)
        host, device = torch.device("cpu"), self.settings.precision.device
        reads = range(len(node.inputs)) if self.host.issuperset(node.outputs) else _HOST_INPUTS.get(node.kind, ())
        targets = [host if index in reads else device for index in range(len(node.inputs))]
        pairs = [(self.known.get(slot), target) for slot, target in zip(node.inputs, targets, strict=True)]
        ready = [value if value is None else value.to(target) for value, target in pairs]

        def on_device(*inputs: Any) -> Any:
            items = zip(inputs, ready, targets, strict=True)
            return run(
                *[item.to(to) if item is not None and constant is None else constant for item, constant, to in items]
            )

        return Lowered(on_device)

    def _fold(self, step: Instruction) -> bool:
        """Compute a step whose inputs are all known; return whether its value is now known."""
        if step.kind == "SHAPE" and step.inputs[0] not in self.known:
            shape = self._static_shape(step)
            if shape is not None:
                self.known[step.outputs[0]] = torch.tensor(shape, dtype=torch.int64)
            return shape is not None
        is_fixed = step.kind not in _NEVER_FOLDED or (step.kind == "FILL" and self.host.issuperset(step.outputs))
        if not is_fixed or not all(slot == MISSING or slot in self.known for slot in step.inputs):
            return False
        values = [self.known.get(slot) for slot in step.inputs]
        size = sum(value.nbytes for value in values if value is not None)
        if size > FOLD_LIMIT_BYTES and step.kind not in _CHANGES_FORM:
            return False
        try:
            result = step.run(*values)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            raise failed(replace(step, inputs=tuple(range(len(values)))), values, error) from error
        self.known.update(zip(step.outputs, result if len(step.outputs) > 1 else (result,), strict=False))
        return True

    def _static_shape(self, step: Instruction) -> tuple[int, ...] | None:
        """Return the result of a SHAPE layer if it is the same in every run."""
        shape = self.graph.spec(step.inputs[0]).shape
        return shape if shape and min(shape) >= 0 else None


def _spec(spec: TensorSpec | None) -> TensorSpec:
    assert spec is not None
    return spec


def _aliases(graph: LayerGraph, precision: Precision) -> dict[int, int]:
    """Map the output of each layer that passes its input through to that input."""
    alias = {}
    for node in graph.nodes:
        if node.kind == "CONDITIONAL_INPUT":
            alias[node.outputs[0]] = node.inputs[0]
        elif node.kind in ("CAST", "IDENTITY"):
            before, after = (_spec(graph.specs[slot]).dtype for slot in (node.inputs[0], node.outputs[0]))
            if before == after or precision.are_alike(before, after):
                alias[node.outputs[0]] = node.inputs[0]
    return alias


def _units(nodes: list[LayerNode], kept: set[int]) -> list[_Unit]:
    """Group the nodes of each outermost loop or conditional."""
    index = {node: position for position, node in enumerate(nodes)}
    units, inside = [], set()
    for construct in outermost(nodes, kept):
        members = sorted(construct.members, key=index.__getitem__)
        inside.update(members)
        written = {slot for node in members for slot in node.outputs}
        ends = [node for node in construct.boundary if node.kind in ("LOOP_OUTPUT", "CONDITIONAL_OUTPUT")]
        reads = {slot for node in members for slot in node.inputs if slot not in written and slot != MISSING}
        outputs = tuple(slot for node in ends for slot in node.outputs)
        units.append(_Unit(members, construct, tuple(sorted(reads)), outputs, index[members[0]]))
    units += [_Unit([node], None, node.inputs, node.outputs, index[node]) for node in nodes if node not in inside]
    return units


def _sorted_units(units: list[_Unit]) -> list[_Unit]:
    """Order units topologically, otherwise as in the network."""
    producer = {slot: unit for unit in units for slot in unit.outputs}
    waits_for = {id(unit): {id(producer[slot]) for slot in unit.inputs if slot in producer} for unit in units}
    readers: dict[int, list[_Unit]] = {}
    for unit in units:
        for before in waits_for[id(unit)]:
            readers.setdefault(before, []).append(unit)
    ready = [(unit.order, index, unit) for index, unit in enumerate(units) if not waits_for[id(unit)]]
    heapify(ready)
    ordered = []
    while ready:
        unit = heappop(ready)[2]
        ordered.append(unit)
        for reader in readers.get(id(unit), ()):
            waits_for[id(reader)].discard(id(unit))
            if not waits_for[id(reader)]:
                heappush(ready, (reader.order, len(units) + len(ordered), reader))
    return ordered


def _count_readers(units: list[_Unit], outputs: tuple[int, ...]) -> dict[int, int]:
    """Count how often each slot is read; being a block's output counts as one more read."""
    count: dict[int, int] = {}
    for slots in [*(unit.inputs for unit in units), outputs]:
        for slot in slots:
            count[slot] = count.get(slot, 0) + 1
    return count


@dataclass(frozen=True, eq=False)
class JoinedConstants:
    """Constants of size 1 along the axis on which they are concatenated."""

    axis: int
    parts: tuple[Tensor, ...]


def joined_constants(step: Instruction, layer: Layer, known: Mapping[int, Tensor]) -> JoinedConstants | None:
    """Return a concatenation's constants if all are constant with one element along the axis."""
    if step.kind != "CONCATENATION" or not all(slot in known for slot in step.inputs):
        return None
    axis, parts = layer.number("axis"), tuple(known[slot] for slot in step.inputs)
    return JoinedConstants(axis, parts) if all(part.shape[axis] == 1 for part in parts) else None


def picking(step: Instruction, layer: Layer, joined: Mapping[int, JoinedConstants]) -> Instruction:
    """Convert a gather from concatenated constants to a step that reads only the selected ones; keep other steps."""
    whole = joined.get(step.inputs[0]) if step.kind == "GATHER" else None
    if whole is None or layer.number("num_elementwise_dims") or layer.option("mode") != "DEFAULT":
        return step
    if layer.number("axis") != whole.axis or len(layer.input_shape(1)) != 1:
        return step

    def run(_unread: None, index: Tensor) -> Tensor:
        return torch.cat([whole.parts[number] for number in index.tolist()], whole.axis)

    return replace(step, run=run, fast=run, inputs=(MISSING, step.inputs[1]))


def without_unread(steps: Sequence[Instruction], outputs: Sequence[int]) -> list[Instruction]:
    """Drop concatenations that are no longer read."""
    read = {slot for step in steps for slot in step.inputs}.union(outputs)
    return [step for step in steps if step.kind != "CONCATENATION" or read.intersection(step.outputs)]
