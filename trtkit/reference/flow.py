"""Run loops and conditionals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trtkit.network.layer_graph import MISSING, LayerNode
from trtkit.reference.control_flow import Construct, live_nodes
from trtkit.reference.program import Program, execute

if TYPE_CHECKING:
    from trtkit.reference.layer import Layer, Op

Values = list[Any]


class BlockCompiler(Protocol):
    """Compiles the layers inside a construct."""

    def block(self, nodes: list[LayerNode], outputs: tuple[int, ...]) -> Program:
        """Compile nodes into a program that yields `outputs`."""
        ...

    def layer(self, node: LayerNode) -> Layer:
        """Return the view of the node that lowerings read."""
        ...


def conditional_op(
    compiler: BlockCompiler, construct: Construct, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Op:
    """Return code that runs the branch its condition chooses, and only that one."""
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
    """A loop's output. shape: of one iteration's value, 0 where it is dynamic."""

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
    """A loop ready to run.

    test: computes the while condition; body: everything else of one iteration.
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

    A LAST_VALUE output of a recurrence is its value after the last iteration, the initial one where there was none.
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
    """Read the boundary layers and compile what is inside."""
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
    """Run one iteration in place; return whether the condition let it run."""
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
    """Return the value of one loop output after the loop; what no iteration wrote is zero."""
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
    """Set the values that come from outside."""
    for slot, value in zip(slots, arguments, strict=True):
        if slot != MISSING and value is not None:
            values[slot] = value


def _initial(programs: list[Program], slot: int) -> Any:
    """Return a value known when compiling."""
    return next(program.initial[slot] for program in programs if program.initial[slot] is not None)


def _results(items: list[Any]) -> Any:
    """Return one item, or a tuple of several."""
    return items[0] if len(items) == 1 else tuple(items)
