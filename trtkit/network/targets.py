"""Which data types a target's GPUs can compute in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import DTYPES
from trtkit.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trtkit.backends import Features
    from trtkit.network.record import NetworkRecord


def check_types(record: NetworkRecord, target: str, compute_capabilities: Sequence[int], features: Features) -> None:
    """Refuse types that need newer hardware than the target names.

    TensorRT-RTX builds such types without complaint when no compute capability is named, and the engine then fails on
    the GPU; so the target must name one. Raises ConfigError.
    """
    names = {tensor.dtype for layer in record.layers for tensor in layer.outputs}
    check_named_types(names, target, compute_capabilities, features)


def check_named_types(
    names: Collection[str], target: str, compute_capabilities: Sequence[int], features: Features
) -> None:
    """Do the same for types by name. Raises ConfigError."""
    problems = []
    for name in sorted(names):
        needed = DTYPES[name].min_compute_capability
        fix = f"build with a target of SM{needed} or newer, such as `--target sm{needed}`"
        if needed and not features.needs_gpu and not compute_capabilities:
            problems.append(Problem(f"type {name} needs SM{needed}, and target `{target}` names no GPU", "target", fix))
        too_old = [f"sm{capability}" for capability in compute_capabilities if capability < needed]
        if too_old:
            problems.append(Problem(f"type {name} needs SM{needed}: not on {', '.join(too_old)}", "target", fix))
    if problems:
        raise ConfigError("the target cannot run the network", problems)
