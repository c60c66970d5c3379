"""Box functions in plain torch, shared by the references of the NMS ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def corners(boxes: Tensor, is_centered: bool) -> Tensor:
    """Return boxes [S, 4] as lower and upper corners [S, 4]. They are two opposite corners, or centre and size."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if is_centered:
        first, second = first - second / 2, first + second / 2
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], 1)


def iou(a: Tensor, b: Tensor) -> float:
    """Return the intersection over union of two boxes, each by its corners [4]; 0 if it is undefined."""
    sides = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0)
    shared = sides.prod()
    union = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared
    return float(shared / union) if shared > 0 and union > 0 else 0.0
