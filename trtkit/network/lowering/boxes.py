"""Boxes by their corners, and their overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.network.lowering.ops import Ops, T


def corners(o: Ops[T], boxes: T, *, is_centered: bool) -> T:
    """Return boxes [B, S, 4] as lower corners, upper corners and areas [B, S, 5].

    A box is two opposite corners, or its center and its sizes.
    """
    a, b, c, d = o.split(boxes, 2)
    if is_centered:
        half = (c * 0.5, d * 0.5)
        ends = [a - half[0], b - half[1], a + half[0], b + half[1]]
    else:
        pairs = ((a, c), (b, d))
        ends = [o.binary(which, *pair) for which in ("min", "max") for pair in pairs]
    area = (ends[2] - ends[0]) * (ends[3] - ends[1])
    return o.stack([*ends, area], 2)


def overlaps(o: Ops[T], one: T, all_boxes: T, threshold: float) -> T:
    """Return whether intersection over union exceeds a threshold: one [B, C, 5], all_boxes [B, S, 5] -> [B, C, S]."""
    mine = [o.unsqueeze(part, 2) for part in o.split(one, 2)]  # [B, C, 1]
    others = [o.unsqueeze(part, 1) for part in o.split(all_boxes, 2)]  # [B, 1, S]
    sides = [
        o.binary(
            "max", o.binary("min", mine[2 + axis], others[2 + axis]) - o.binary("max", mine[axis], others[axis]), 0.0
        )
        for axis in range(2)
    ]
    shared = sides[0] * sides[1]
    union = mine[4] + others[4] - shared
    return (shared > 0.0) & (union > 0.0) & (shared / o.binary("max", union, 1e-38) > threshold)
