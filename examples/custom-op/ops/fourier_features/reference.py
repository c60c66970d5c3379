"""The mathematics in plain torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def reference(inputs: Sequence[Any], attributes: Any) -> list[Any]:
    """Return x, then sin and cos of 2^k pi x for each band k, side by side."""
    x = inputs[0]
    waves = [wave(2**k * math.pi * x) for k in range(attributes.bands) for wave in (torch.sin, torch.cos)]
    return [torch.cat([x, *waves], dim=-1)]
