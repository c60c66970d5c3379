"""Which data types a target's GPUs can compute in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import DTYPES
from trtkit.errors import ConfigError, Problem

if TYPE_CHECKING:
    from trtkit.config.targets import Target
    from trtkit.network.describe import NetworkRecord


def check_types(record: NetworkRecord, target: Target) -> None:
    """Refuse types that need newer hardware than `target` names.

    TensorRT-RTX builds such types without complaint when no compute capability is named, and the engine then fails on
    the GPU; so the target must name one. Raises ConfigError.
    """
    tensors = (tensor for layer in record.layers for tensor in layer.outputs)
    demanding = sorted({t.dtype for t in tensors if DTYPES[t.dtype].min_compute_capability}, key=str)
    problems = []
    for name in demanding:
        needed = DTYPES[name].min_compute_capability
        fix = f"build with a target of SM{needed} or newer, such as `--target sm{needed}`"
        if target.backend != "tensorrt" and not target.compute_capabilities:
            problems.append(
                Problem(f"type {name} needs SM{needed}, and target `{target.name}` names no GPU", "target", fix)
            )
        too_old = [f"sm{capability}" for capability in target.compute_capabilities if capability < needed]
        if too_old:
            problems.append(Problem(f"type {name} needs SM{needed}: not on {', '.join(too_old)}", "target", fix))
    if problems:
        raise ConfigError("the target cannot run the network", problems)
