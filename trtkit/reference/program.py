"""A compiled network: steps over numbered values."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trtkit.errors import ExecutionError
from trtkit.network.layer_graph import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from trtkit.reference.layer import Op, Tensor

Observer = Callable[[int, Any], None]
"""Called with each tensor's slot and value when it is computed."""

LayerTimer = Callable[[str, float], None]
"""Called with each layer's name and seconds after it ran."""


@dataclass(frozen=True, eq=False)
class Instruction:
    """One layer that is ready to run.

    run: leaves its inputs unchanged. fast: may reuse the memory of an input that nothing else needs. frees: slots that
    no later step reads. optional: indices of a concatenation's inputs that contribute nothing if they have no elements:
    only along its axis can their size be 0. is_view: whether the output consists of elements of the first input, often
    in its memory, selected by the other inputs.
    """

    run: Op
    fast: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    kind: str
    name: str
    optional: frozenset[int] = frozenset()
    is_view: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """Steps in execution order.

    initial: one value per slot, with constants filled in. outputs: the slots of the results.
    """

    steps: tuple[Instruction, ...]
    initial: list[Any]
    outputs: tuple[int, ...]

    @cached_property
    def calls(self) -> list[tuple[Instruction, Op, tuple[int, ...], int | None, tuple[int, ...]]]:
        """What the execution loop, which runs once for every layer, reads of each step.

        The output is None if there are several.
        """
        return [
            (step, step.fast, step.inputs, step.outputs[0] if len(step.outputs) == 1 else None, step.frees)
            for step in self.steps
        ]


def with_frees(steps: Sequence[Instruction], outputs: tuple[int, ...]) -> list[Instruction]:
    """Return the steps, each freeing the slots that no later step reads."""
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
"""Inputs which, if they have no elements, leave the output without any: all that rows of prompts pass through."""
_HAS_EFFECTS = ("ASSERTION", "DIST_COLLECTIVE", "KV_CACHE_UPDATE")


def shortened(program: Program, inputs: Iterable[int], outputs: tuple[int, ...]) -> Program:
    """Return the steps needed for some outputs if `inputs` have no elements, as in a packed call without prompts.

    Empty tensors are not concatenated to others, and results that are then unused are not computed.
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
        read = tuple(slot for index, slot in enumerate(step.inputs) if index not in step.optional or slot not in empty)
        steps.append(replace(step, inputs=read or step.inputs))
        needed.update(steps[-1].inputs)
    return replace(program, steps=tuple(with_frees(_in_fewer_steps(steps[::-1], outputs), outputs)), outputs=outputs)


def _in_fewer_steps(steps: Sequence[Instruction], outputs: tuple[int, ...]) -> list[Instruction]:
    """Return the steps with chains of views merged, also across concatenations of a single tensor, which copy it.

    If no prompts are read, each layer's tokens pass through such steps on their way to attention and back.
    """
    readers = Counter(slot for step in steps for slot in step.inputs)
    readers.update(outputs)
    finished: dict[int, Instruction] = {}
    for step in steps:
        joined = _joined_views(step, finished, readers) if step.is_view else step
        finished[joined.outputs[0] if joined.outputs else -1 - len(finished)] = joined
    return list(finished.values())


def _joined_views(step: Instruction, finished: dict[int, Instruction], readers: Counter[int]) -> Instruction:
    """Return a view merged with the views that only it reads, which are removed from the finished steps."""
    while readers[step.inputs[0]] == 1 and (before := finished.get(step.inputs[0])) is not None:
        if before.is_view:
            joined = _after(before, step)
        elif before.kind == "CONCATENATION" and len(before.inputs) == 1:
            joined = replace(step, inputs=before.inputs + step.inputs[1:])
        else:
            break
        del finished[step.inputs[0]]
        step = joined
    return step


def _after(first: Instruction, second: Instruction) -> Instruction:
    """Return two views merged into one step."""
    views = [
        step.run if isinstance(step.run, _Views) else _Views(((step.run, len(step.inputs) - 1),))
        for step in (first, second)
    ]
    run = _Views(views[0].views + views[1].views)
    return replace(second, run=run, fast=run, inputs=first.inputs + second.inputs[1:])


@dataclass(frozen=True, eq=False)
class _Views:
    """A chain of views as one. views: each with the number of its inputs in addition to the tensor."""

    views: tuple[tuple[Op, int], ...]
    _known: dict[tuple[object, ...], tuple[torch.Size, tuple[int, ...], int]] = field(default_factory=dict)

    def __call__(self, x: Tensor, *numbers: Tensor | None) -> Tensor:
        """Return the last view, with cached sizes and strides for the same sizes, strides and numbers."""
        key = (x.shape, x.stride(), *[None if item is None else tuple(item.flatten().tolist()) for item in numbers])
        if (known := self._known.get(key)) is not None:
            shape, stride, offset = known
            return x.as_strided(shape, stride, x.storage_offset() + offset)
        y, first = x, 0
        for view, count in self.views:
            y = view(y, *numbers[first : first + count])
            first += count
        if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            if len(self._known) == _MOST_VIEWS:
                self._known.clear()
            self._known[key] = y.shape, y.stride(), int(y.storage_offset() - x.storage_offset())
        return y


_MOST_VIEWS = 256  # that a step remembers


def execute(program: Program, values: list[Any]) -> None:
    """Run every step on `values`, releasing each value after its last use."""
    step = None
    try:
        for step, run, inputs, output, frees in program.calls:
            result = run(*[values[slot] for slot in inputs])
            if output is not None:
                values[output] = result
            else:
                for slot, item in zip(step.outputs, result, strict=True):
                    values[slot] = item
            for slot in frees:
                values[slot] = None
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, OverflowError) as error:
        assert step is not None
        raise failed(step, values, error) from error


def timed(program: Program, timer: LayerTimer) -> Program:
    """Return the program with every step reporting its duration to `timer`."""
    return replace(program, steps=tuple(replace(step, fast=_timed(step, timer)) for step in program.steps))


def _timed(step: Instruction, timer: LayerTimer) -> Op:
    def run(*inputs: Any) -> Any:
        started = time.perf_counter()
        result = step.fast(*inputs)
        timer(step.name, time.perf_counter() - started)
        return result

    return run


def observe(program: Program, values: list[Any], observer: Observer) -> None:
    """Run every step, passing each result to `observer`; no memory is reused."""
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
    """Return the error for a layer on which torch failed."""
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
