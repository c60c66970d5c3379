"""From logits and box codes to boxes: the best of all queries and classes, nothing suppressed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def decode(logits: Tensor, codes: Tensor, count: int, post_center_range: Sequence[float]) -> dict[str, Tensor]:
    """Return `scores`, `labels`, `is_inside` [B, count] and `boxes` [B, count, 9], best first.

    logits: [B, Q, classes]; codes: [B, Q, 10], centres in metres. boxes: cx, cy, cz, w, l, h, yaw, vx, vy.
    is_inside: whether the centre lies in the range; the authors drop the others.
    """
    scores, index = logits.sigmoid().flatten(1).topk(count)
    query, labels = index // logits.shape[-1], index % logits.shape[-1]
    chosen = codes.gather(1, query.unsqueeze(-1).expand(-1, -1, codes.shape[-1]))
    centre = torch.cat((chosen[..., 0:2], chosen[..., 4:5]), -1)
    sizes = torch.cat((chosen[..., 2:4], chosen[..., 5:6]), -1).exp()
    yaw = torch.atan2(chosen[..., 6:7], chosen[..., 7:8])
    low, high = (centre.new_tensor(post_center_range[half]) for half in (slice(0, 3), slice(3, 6)))
    is_inside = ((centre >= low) & (centre <= high)).all(-1)
    boxes = torch.cat((centre, sizes, yaw, chosen[..., 8:]), -1)
    return {"scores": scores, "labels": labels.int(), "boxes": boxes, "is_inside": is_inside}
