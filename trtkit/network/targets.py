"""Data types that a target's GPUs support."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import DTYPES
from trtkit.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trtkit.backends import Features
    from trtkit.network.record import NetworkRecord


def capable_of(record: NetworkRecord, compute_capabilities: Sequence[int], features: Features) -> tuple[int, ...]:
    """Return a network's compute capabilities: the target's, or if it names none, those that support its types.

    Without named GPUs, TensorRT-RTX builds types that only some GPUs support, and the engine fails on the others. Empty
    if all GPUs support the network's types. Raises ConfigError if the target's GPUs do not.
    """
    names = {tensor.dtype for layer in record.layers for tensor in layer.outputs}
    check_named_types(names, compute_capabilities)
    needed = _needed(names)
    if compute_capabilities or features.needs_gpu or not needed:
        return tuple(compute_capabilities)
    return tuple(capability for capability in features.compute_capabilities if capability >= needed)


def check_named_types(names: Collection[str], compute_capabilities: Sequence[int]) -> None:
    """Refuse types, by name, that the target's GPUs do not support. Raises ConfigError."""
    problems = []
    for name in sorted(names):
        needed = _needed([name])
        too_old = [f"sm{capability}" for capability in compute_capabilities if capability < needed]
        if too_old:
            fix = f"build with a target of SM{needed} or newer, such as `--target sm{needed}`"
            problems.append(Problem(f"type {name} needs SM{needed}: not on {', '.join(too_old)}", "target", fix))
    if problems:
        raise ConfigError("the target cannot run the network", problems)


def _needed(names: Collection[str]) -> int:
    return max((DTYPES[name].min_compute_capability for name in names), default=0)
