"""Pick constants one by one where a network joins them and picks from the whole: a mixture's experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from trtkit.network.layer_graph import MISSING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.reference.layer import Layer, Tensor
    from trtkit.reference.program import Step


@dataclass(frozen=True, eq=False)
class Joined:
    """Constants of size 1 along the axis that they are joined along."""

    axis: int
    parts: tuple[Tensor, ...]


def joined_constants(step: Step, layer: Layer, known: Mapping[int, Tensor]) -> Joined | None:
    """Return what a step joins, if these are constants and each is one element of the axis."""
    if step.kind != "CONCATENATION" or not all(slot in known for slot in step.inputs):
        return None
    axis, parts = layer.number("axis"), tuple(known[slot] for slot in step.inputs)
    return Joined(axis, parts) if all(part.shape[axis] == 1 for part in parts) else None


def picking(step: Step, layer: Layer, joined: Mapping[int, Joined]) -> Step:
    """Return a gather of joined constants as a step that reads only those that it picks; other steps as they are."""
    whole = joined.get(step.inputs[0]) if step.kind == "GATHER" else None
    if whole is None or layer.number("num_elementwise_dims") or layer.option("mode") != "DEFAULT":
        return step
    if layer.number("axis") != whole.axis or len(layer.input_shape(1)) != 1:
        return step

    def run(_unread: None, index: Tensor) -> Tensor:
        return torch.cat([whole.parts[place] for place in index.tolist()], whole.axis)

    return replace(step, run=run, fast=run, inputs=(MISSING, step.inputs[1]))


def without_unread(steps: Sequence[Step], outputs: Sequence[int]) -> list[Step]:
    """Leave out joins that nothing reads any more."""
    read = {slot for step in steps for slot in step.inputs}.union(outputs)
    return [step for step in steps if step.kind != "CONCATENATION" or read.intersection(step.outputs)]
