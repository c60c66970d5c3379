"""Where transformers' models hold the experts of their mixtures: as one array for all experts of a layer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_LAYER = re.compile(r"\blayers\.(\d+)\.")
_FIRST = ("gate_up_proj", "up_proj")
"""What transformers calls the array that experts' inputs meet: gates and ups, or ups alone without gates."""


@dataclass(frozen=True, eq=False)
class JoinedExperts:
    """The experts of one layer. path: of their module; first: the name of the array [E, F or 2 F, D] that inputs meet.

    The other array is `down_proj` [E, D, F]; the module multiplies by one expert's part of each after the other.
    """

    path: str
    module: torch.nn.Module
    first: str


def joined_experts(model: torch.nn.Module) -> dict[int, JoinedExperts]:
    """Return by layer the experts that a model of transformers holds so; other forms are left out."""
    experts = {}
    for path, module in model.named_modules():
        layer = _LAYER.search(path)
        first = next((name for name in _FIRST if getattr(module, name, None) is not None), None)
        if layer is None or first is None:
            continue
        shapes = [tuple(getattr(getattr(module, name, None), "shape", ())) for name in (first, "down_proj")]
        is_known = all(len(shape) == 3 for shape in shapes) and shapes[0][2] == shapes[1][1]
        if is_known and not hasattr(module, f"{first}_bias"):
            experts[int(layer[1])] = JoinedExperts(path, module, first)
    return experts
