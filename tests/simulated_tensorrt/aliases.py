"""Tensors of one launch that share memory: TensorRT orders updates and reads of a cache by names, not addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.simulated_tensorrt.context import Launch

    Tensors = Mapping[str, torch.Tensor]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_POISON = {1: 0x55, 2: 0x5555, 4: 0x55555555}
"""Bits of what is read where an update writes: a large finite number of each type, as stale memory holds."""


def fault_of_aliases(launch: Launch) -> str:
    """Say which output shares memory that it may not; empty if none does.

    Two outputs have no order, so neither have two updates of one cache. An output that is not an update is written
    while inputs are read.
    """
    engine, ranges = launch.context.engine, _ranges(launch)
    for name in engine.outputs:
        cache = engine.get_aliased_input_tensor(name)
        others = [*engine.outputs, *(engine.inputs if cache is None else ())]
        for other in others:
            if other != name and _is_shared(ranges, name, other):
                return f"`{name}` is written to memory that `{other}` has, too: nothing orders them"
    return ""


def inputs_at_worst(launch: Launch, inputs: Tensors, run: Callable[[Tensors], object]) -> Tensors:
    """Return a launch's inputs as it may read them at worst.

    What an update of a cache writes is poison in any other input on the same memory, since it may be read before or
    after. `run` computes the network, to show what is written: the values may be written twice.
    """
    engine, ranges = launch.context.engine, _ranges(launch)
    updates = {name: engine.get_aliased_input_tensor(name) for name in engine.outputs}
    late = {
        name: inputs[name].clone()
        for name in engine.inputs
        if any(cache not in (None, name) and _is_shared(ranges, name, update) for update, cache in updates.items())
    }
    if not late:
        return inputs
    run({**inputs, **late})
    return {**inputs, **{name: _poisoned(before, inputs[name]) for name, before in late.items()}}


def _poisoned(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    size = before.dtype.itemsize
    old, new = before.view(_BITS[size]), after.view(_BITS[size])
    return torch.where(old == new, old, torch.full_like(old, _POISON[size])).view(before.dtype)


def _ranges(launch: Launch) -> dict[str, tuple[int, int]]:
    sizes = {name: launch.context.size_bytes(name, launch.shapes[name]) for name in launch.addresses}
    return {name: (start, start + sizes[name]) for name, start in launch.addresses.items() if sizes[name] > 0}


def _is_shared(ranges: Mapping[str, tuple[int, int]], name: str, other: str) -> bool:
    if name not in ranges or other not in ranges:
        return False
    (start, end), (its_start, its_end) = ranges[name], ranges[other]
    return start < its_end and its_start < end
