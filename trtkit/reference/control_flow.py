"""Loops and conditionals: detection of the layers they enclose in TensorRT's flat list, and their execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trtkit.network.layer_graph import MISSING, LayerNode
from trtkit.reference.program import Program, execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trtkit.reference.layer import Layer, Op

LOOP_KINDS = ("TRIP_LIMIT", "ITERATOR", "RECURRENCE", "LOOP_OUTPUT")


@dataclass(eq=False)
class Construct:
    """A loop or a conditional with everything inside it.

    boundary: its own layers. branches: the layers for true and for false; a single set for a loop's body.
    """

    is_loop: bool
    boundary: list[LayerNode]
    branches: list[set[LayerNode]] = field(default_factory=list)

    @property
    def members(self) -> set[LayerNode]:
        return set(self.boundary).union(*self.branches)


@dataclass(frozen=True)
class _Scope:
    """The layers to search. kept: slots read from outside. owned: boundary layers by the identity of their owner."""

    producer: dict[int, LayerNode]
    readers: dict[int, list[LayerNode]]
    owned: dict[int, list[LayerNode]]
    kept: set[int]


def outermost(nodes: list[LayerNode], kept: set[int]) -> list[Construct]:
    """Return the constructs among `nodes` that are not enclosed by others. kept: slots read from outside `nodes`."""
    scope = _scope(nodes, kept)
    constructs = [_construct(boundary, scope) for boundary in scope.owned.values()]
    _absorb(constructs)
    members = [construct.members for construct in constructs]
    return [
        construct
        for construct, inner in zip(constructs, members, strict=True)
        if not any(inner < other for other in members)
    ]


def live_nodes(nodes: Iterable[LayerNode], outputs: Iterable[int]) -> list[LayerNode]:
    """Return, in order, the nodes that outputs and assertions depend on."""
    nodes = list(nodes)
    producer = {slot: node for node in nodes for slot in node.outputs}
    owners: dict[int, list[LayerNode]] = {}
    for node in nodes:
        if node.construct:
            owners.setdefault(node.construct, []).append(node)
    pending = [producer[slot] for slot in outputs if slot in producer]
    pending += [node for node in nodes if node.kind == "ASSERTION"]
    live: set[LayerNode] = set()
    while pending:
        node = pending.pop()
        if node in live:
            continue
        live.add(node)
        pending += [producer[slot] for slot in node.inputs if slot in producer]
        if node.construct:
            pending += [other for other in owners[node.construct] if _steers(other)]
    return [node for node in nodes if node in live]


def _steers(node: LayerNode) -> bool:
    """Whether the construct needs this layer regardless of which outputs are read."""
    return node.kind in ("TRIP_LIMIT", "CONDITION")


def _scope(nodes: list[LayerNode], kept: set[int]) -> _Scope:
    """Index producers, readers and owners."""
    readers: dict[int, list[LayerNode]] = {}
    owned: dict[int, list[LayerNode]] = {}
    for node in nodes:
        for slot in node.inputs:
            readers.setdefault(slot, []).append(node)
        if node.construct:
            owned.setdefault(node.construct, []).append(node)
    return _Scope({slot: node for node in nodes for slot in node.outputs}, readers, owned, kept)


def _construct(boundary: list[LayerNode], scope: _Scope) -> Construct:
    """Find the layers inside one loop or conditional."""
    if boundary[0].kind in LOOP_KINDS:
        return Construct(True, boundary, [_loop_body(boundary, scope)])
    ends = [node for node in boundary if node.kind == "CONDITIONAL_OUTPUT"]
    return Construct(False, boundary, [_branch(ends, index, scope) for index in (0, 1)])


def _loop_body(boundary: list[LayerNode], scope: _Scope) -> set[LayerNode]:
    """Return the layers that depend on a recurrence or iterator; others run once, before the loop."""
    boundary_nodes = set(boundary)
    pending = [slot for node in boundary if node.kind in ("RECURRENCE", "ITERATOR") for slot in node.outputs]
    body: set[LayerNode] = set()
    while pending:
        for reader in scope.readers.get(pending.pop(), ()):
            if reader not in body and reader not in boundary_nodes:
                body.add(reader)
                pending += reader.outputs
    return body


def _branch(ends: list[LayerNode], index: int, scope: _Scope) -> set[LayerNode]:
    """Return the layers needed only by input `index` of the conditional's outputs."""

    def takes_result(slot: int, reader: LayerNode) -> bool:
        return reader in ends and reader.inputs[1 - index] != slot

    branch: set[LayerNode] = set()
    pending = [scope.producer[end.inputs[index]] for end in ends if end.inputs[index] in scope.producer]
    while pending:
        node = pending.pop()
        if node in branch or node.construct == ends[0].construct:
            continue
        unit = _unit(node, scope)
        if _is_read_only_by(unit, branch, scope, takes_result):
            branch |= unit
            pending += [scope.producer[slot] for member in unit for slot in member.inputs if slot in scope.producer]
    written = {slot for node in branch for slot in node.outputs}
    asserts = [node for slot in written for node in scope.readers.get(slot, ()) if node.kind == "ASSERTION"]
    return branch.union(asserts)


def _unit(node: LayerNode, scope: _Scope) -> set[LayerNode]:
    """Return the layers that must stay together with this one: all of a loop, or a conditional's boundary."""
    unit: set[LayerNode] = set()
    pending = [node]
    while pending:
        member = pending.pop()
        if member in unit:
            continue
        unit.add(member)
        if member.construct:
            boundary = scope.owned[member.construct]
            pending += boundary
            if member.kind in LOOP_KINDS:
                pending += _loop_body(boundary, scope)
    return unit


def _is_read_only_by(
    unit: set[LayerNode], branch: set[LayerNode], scope: _Scope, takes_result: Callable[[int, LayerNode], bool]
) -> bool:
    """Whether every reader of the unit is in the branch or takes the branch's result."""
    for node in unit:
        if node.kind in ("CONDITIONAL_INPUT", "RECURRENCE", "ITERATOR"):
            continue
        for slot in node.outputs:
            outside = [
                reader
                for reader in scope.readers.get(slot, ())
                if reader not in branch and reader not in unit and reader.kind != "ASSERTION"
            ]
            if slot in scope.kept or not all(takes_result(slot, reader) for reader in outside):
                return False
    return True


def _absorb(constructs: list[Construct]) -> None:
    """Extend each loop body by every construct that is partly inside it."""
    changed = True
    while changed:
        changed = False
        for loop in (construct for construct in constructs if construct.is_loop):
            for other in constructs:
                inside = other is not loop and loop.branches[0] & other.members
                if inside and not loop.members <= other.members and not other.members <= loop.branches[0]:
                    loop.branches[0] |= other.members - set(loop.boundary)
                    changed = True


Values = list[Any]


class BlockCompiler(Protocol):
    """Compiles the layers inside a construct."""

    def block(self, nodes: list[LayerNode], outputs: tuple[int, ...]) -> Program:
        """Compile nodes into a program that yields `outputs`."""
        ...

    def layer(self, node: LayerNode) -> Layer:
        """Return the lowerings' view of the node."""
        ...


def conditional_op(
    compiler: BlockCompiler, construct: Construct, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Op:
    """Return code that runs only the branch selected by the condition."""
    condition = next(node.inputs[0] for node in construct.boundary if node.kind == "CONDITION")
    ends = {node.outputs[0]: node for node in construct.boundary if node.kind == "CONDITIONAL_OUTPUT"}
    programs = [
        compiler.block(_in_order(construct, branch), tuple(ends[slot].inputs[index] for slot in outputs))
        for index, branch in enumerate(construct.branches)
    ]
    index = inputs.index(condition) if condition in inputs else None
    constant = None if index is not None else _initial(programs, condition)

    def run(*arguments: Any) -> Any:
        chosen = arguments[index] if index is not None else constant
        program = programs[0] if bool(chosen) else programs[1]
        values = list(program.initial)
        _fill(values, inputs, arguments)
        execute(program, values)
        return _results([values[slot] for slot in program.outputs])

    return run


@dataclass(frozen=True, eq=False)
class _End:
    """A loop's output. shape: of one iteration's value, 0 for dynamic sizes."""

    node: LayerNode
    kind: str
    axis: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def _end(node: LayerNode, layer: Layer) -> _End:
    """Read a loop output layer."""
    shape = tuple(max(size, 0) for size in layer.input_shape(0))
    return _End(node, layer.option("kind"), layer.number("axis"), shape, layer.output_dtype())


@dataclass(frozen=True, eq=False)
class _Loop:
    """A loop that is ready to run.

    test: computes the while condition; body: everything else in an iteration.
    """

    count: int | None
    condition: int | None
    iterators: tuple[tuple[LayerNode, int, bool], ...]
    recurrences: tuple[LayerNode, ...]
    ends: tuple[_End, ...]
    test: Program
    body: Program
    initial: Values


def loop_op(compiler: BlockCompiler, construct: Construct, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Op:
    """Return code that runs a loop (INetworkDefinition's ILoop).

    A LAST_VALUE output of a recurrence is its value after the last iteration, or the initial one if there was no
    iteration.
    """
    loop = _compile_loop(compiler, construct, outputs)

    def run(*arguments: Any) -> Any:
        values = list(loop.initial)
        _fill(values, inputs, arguments)
        for node in loop.recurrences:
            values[node.outputs[0]] = values[node.inputs[0]]
        limit = None if loop.count is None else int(values[loop.count])
        collected: dict[int, list[Any]] = {end.node.outputs[0]: [] for end in loop.ends}
        iteration = 0
        while (limit is None or iteration < limit) and _iterate(loop, values, iteration, limit, collected):
            iteration += 1
        return _results([_loop_output(end, values, collected) for end in loop.ends])

    return run


def _compile_loop(compiler: BlockCompiler, construct: Construct, outputs: tuple[int, ...]) -> _Loop:
    """Read the boundary layers and compile the layers inside."""
    boundary = construct.boundary
    limits = {compiler.layer(node).option("kind"): node.inputs[0] for node in boundary if node.kind == "TRIP_LIMIT"}
    recurrences = tuple(node for node in boundary if node.kind == "RECURRENCE")
    by_output = {node.outputs[0]: node for node in boundary if node.kind == "LOOP_OUTPUT"}
    ends = tuple(_end(by_output[slot], compiler.layer(by_output[slot])) for slot in outputs)
    condition = limits.get("WHILE")
    nodes = _in_order(construct, construct.branches[0])
    tested = live_nodes([node for node in nodes if node.kind != "ASSERTION"], [condition] if condition else [])
    touched = {slot for node in tested for slot in (*node.inputs, *node.outputs) if slot != MISSING}
    test = compiler.block(tested, tuple(touched))  # frees nothing: the body reads the same values
    wanted = {*(node.inputs[1] for node in recurrences), *(end.node.inputs[0] for end in ends)}
    body = compiler.block([node for node in nodes if node not in tested], tuple(wanted))
    outer = {slot for node in boundary for slot in node.inputs if slot != MISSING}
    rest = compiler.block([], tuple(outer))
    initial = [
        next((item for item in items if item is not None), None)
        for items in zip(test.initial, body.initial, rest.initial, strict=True)
    ]
    iterators = tuple(
        (node, layer.number("axis"), layer.flag("reverse"))
        for node in boundary
        if node.kind == "ITERATOR" and (layer := compiler.layer(node))
    )
    return _Loop(limits.get("COUNT"), condition, iterators, recurrences, ends, test, body, initial)


def _iterate(loop: _Loop, values: Values, iteration: int, limit: int | None, collected: dict[int, list[Any]]) -> bool:
    """Run one iteration in place; return whether the condition permitted it."""
    local = list(values)
    for node, axis, is_reverse in loop.iterators:
        position = (limit or 0) - 1 - iteration if is_reverse else iteration
        local[node.outputs[0]] = local[node.inputs[0]].select(axis, position)
    execute(loop.test, local)
    if loop.condition is not None and not bool(local[loop.condition]):
        return False
    execute(loop.body, local)
    states = {node.outputs[0] for node in loop.recurrences}
    for end in loop.ends:
        source = end.node.inputs[0]
        if end.kind != "LAST_VALUE":
            collected[end.node.outputs[0]].append(local[source])
        elif source not in states:
            values[source] = local[source]
    after = [local[node.inputs[1]] for node in loop.recurrences]
    for node, value in zip(loop.recurrences, after, strict=True):
        values[node.outputs[0]] = value
    return True


def _loop_output(end: _End, values: Values, collected: dict[int, list[Any]]) -> Any:
    """Return the value of one loop output after the loop; elements that no iteration wrote are zero."""
    if end.kind == "LAST_VALUE":
        return values[end.node.inputs[0]]
    items = collected[end.node.outputs[0]]
    length = int(values[end.node.inputs[1]])
    if not items:
        return torch.zeros([*end.shape[: end.axis], length, *end.shape[end.axis :]], dtype=end.dtype)
    items = items[::-1] if end.kind == "REVERSE" else items
    return torch.stack(items + [torch.zeros_like(items[0])] * (length - len(items)), end.axis)


def _in_order(construct: Construct, branch: set[LayerNode]) -> list[LayerNode]:
    """Return the branch without the construct's own boundary, in a fixed order."""
    boundary_nodes = set(construct.boundary)
    return sorted((node for node in branch if node not in boundary_nodes), key=lambda node: (node.outputs or (0,))[0])


def _fill(values: Values, slots: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
    """Set the values of inputs from outside."""
    for slot, value in zip(slots, arguments, strict=True):
        if slot != MISSING and value is not None:
            values[slot] = value


def _initial(programs: list[Program], slot: int) -> Any:
    """Return a value that is known at compile time."""
    return next(program.initial[slot] for program in programs if program.initial[slot] is not None)


def _results(items: list[Any]) -> Any:
    return items[0] if len(items) == 1 else tuple(items)
