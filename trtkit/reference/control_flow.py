"""Find which layers loops and conditionals enclose: TensorRT's layer list is flat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trtkit.network.layer_graph import LayerNode

LOOP_KINDS = ("TRIP_LIMIT", "ITERATOR", "RECURRENCE", "LOOP_OUTPUT")
CONDITIONAL_KINDS = ("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT")


@dataclass(eq=False)
class Construct:
    """A loop or a conditional with everything inside it.

    boundary: its own layers. branches: the layers run for true and for false; one set for a loop's body.
    """

    is_loop: bool
    boundary: list[LayerNode]
    branches: list[set[LayerNode]] = field(default_factory=list)

    @property
    def members(self) -> set[LayerNode]:
        """Every layer that belongs to it."""
        return set(self.boundary).union(*self.branches)


@dataclass(frozen=True)
class _Scope:
    """The layers searched. kept: slots read from outside. owned: boundary layers by the identity of their owner."""

    producer: dict[int, LayerNode]
    readers: dict[int, list[LayerNode]]
    owned: dict[int, list[LayerNode]]
    kept: set[int]


def outermost(nodes: list[LayerNode], kept: set[int]) -> list[Construct]:
    """Return the constructs among `nodes` that no other encloses. kept: slots read from outside `nodes`."""
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
    """Return, in their order, the nodes that outputs and assertions depend on."""
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
    """Whether the construct needs this layer whatever its outputs are read for."""
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
    """Return the layers that only input `index` of the conditional's outputs needs."""

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
    """Return the layers that go where this one goes: all of a loop, the boundary of a conditional."""
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
    """Give each loop body the whole of every construct that is partly inside it."""
    changed = True
    while changed:
        changed = False
        for loop in (construct for construct in constructs if construct.is_loop):
            for other in constructs:
                inside = other is not loop and loop.branches[0] & other.members
                if inside and not loop.members <= other.members and not other.members <= loop.branches[0]:
                    loop.branches[0] |= other.members - set(loop.boundary)
                    changed = True
