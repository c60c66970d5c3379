"""A compiled network: steps over numbered values."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtkit.errors import ExecutionError
from trtkit.network.layer_graph import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtkit.reference.layer import Op

Observer = Callable[[int, Any], None]
"""Told each tensor's slot and value as it is computed."""

LayerTimer = Callable[[str, float], None]
"""Told each layer's name and seconds as it has run."""


@dataclass(frozen=True, eq=False)
class Instruction:
    """One layer ready to run.

    run: leaves its inputs as they are. fast: may reuse the memory of an input that nothing else needs.
    frees: slots that no later step reads. optional: inputs of a concatenation that add nothing to it if they have no
    elements, by their place: only along its axis can their size be 0.
    """

    run: Op
    fast: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    kind: str
    name: str
    optional: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Program:
    """Steps in the order to run them.

    initial: a value per slot, constants filled in. outputs: the slots of the results.
    """

    steps: tuple[Instruction, ...]
    initial: list[Any]
    outputs: tuple[int, ...]


def with_frees(steps: Sequence[Instruction], outputs: tuple[int, ...]) -> list[Instruction]:
    """Return the steps, each freeing what none after it reads."""
    needed = set(outputs)
    finished = []
    for step in reversed(steps):
        touched = {*step.inputs, *step.outputs} - needed - {MISSING}
        needed.update(touched)
        finished.append(replace(step, frees=tuple(sorted(touched))))
    return finished[::-1]


_HANDS_ON = {
    "ATTENTION": (0,), "CAST": (0,), "ELEMENTWISE": (0, 1), "GATHER": (1,), "SELECT": (0, 1, 2), "SHUFFLE": (0,),
    "UNARY": (0,), "UNSQUEEZE": (0,),
}  # fmt: skip
"""Inputs of which one without elements leaves the output without any: all that rows of prompts go through."""
_HAS_EFFECTS = ("ASSERTION", "DIST_COLLECTIVE", "KV_CACHE_UPDATE")


def shortened(program: Program, inputs: Iterable[int], outputs: tuple[int, ...]) -> Program:
    """Return what some outputs need if `inputs` have no elements, as those of a packed call without prompts.

    What has none is not joined to what has some, and what nothing reads then is not computed.
    """
    empty = set(inputs)
    for step in program.steps:
        is_joined = step.kind == "CONCATENATION" and empty.issuperset(step.inputs)
        if is_joined or any(step.inputs[index] in empty for index in _HANDS_ON.get(step.kind, ())):
            empty.update(step.outputs)
    steps, needed = [], set(outputs)
    for step in reversed(program.steps):
        if needed.isdisjoint(step.outputs) and step.kind not in _HAS_EFFECTS:
            continue
        read = tuple(slot for place, slot in enumerate(step.inputs) if place not in step.optional or slot not in empty)
        steps.append(replace(step, inputs=read or step.inputs))
        needed.update(steps[-1].inputs)
    return replace(program, steps=tuple(with_frees(steps[::-1], outputs)), outputs=outputs)


def execute(program: Program, values: list[Any]) -> None:
    """Run every step on `values`, forgetting each value after its last use."""
    step = None
    try:
        for step in program.steps:
            result = step.fast(*[values[slot] for slot in step.inputs])
            if len(step.outputs) == 1:
                values[step.outputs[0]] = result
            else:
                for slot, item in zip(step.outputs, result, strict=True):
                    values[slot] = item
            for slot in step.frees:
                values[slot] = None
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, OverflowError) as error:
        assert step is not None
        raise failed(step, values, error) from error


def timed(program: Program, timer: LayerTimer) -> Program:
    """Return the program with every step telling `timer` how long it took."""
    return replace(program, steps=tuple(replace(step, fast=_timed(step, timer)) for step in program.steps))


def _timed(step: Instruction, timer: LayerTimer) -> Op:
    def run(*inputs: Any) -> Any:
        started = time.perf_counter()
        result = step.fast(*inputs)
        timer(step.name, time.perf_counter() - started)
        return result

    return run


def observe(program: Program, values: list[Any], observer: Observer) -> None:
    """Run every step, telling `observer` each result; no memory is reused."""
    for step in program.steps:
        try:
            result = step.run(*[values[slot] for slot in step.inputs])
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, OverflowError) as error:
            raise failed(step, values, error) from error
        for slot, item in zip(step.outputs, result if len(step.outputs) > 1 else (result,), strict=False):
            values[slot] = item
            observer(slot, item)
        for slot in step.frees:
            values[slot] = None


def failed(step: Instruction, values: list[Any], error: Exception) -> ExecutionError:
    """Return the error for a layer that torch could not compute."""
    if isinstance(error, ExecutionError):
        return error
    inputs = ", ".join(_describe(values[slot]) for slot in step.inputs)
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ExecutionError(
        f"the {step.kind} layer cannot be computed from {inputs or 'no inputs'}: {reason}",
        step.name,
        "check the shapes and values that the network's inputs give this layer",
    )


def _describe(value: Any) -> str:
    """Return `fp32[1, 3]` for a tensor."""
    if value is None:
        return "none"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
