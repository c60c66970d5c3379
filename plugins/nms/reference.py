"""Non-maximum suppression in plain torch. Source: ONNX's NonMaxSuppression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..boxes.reference import corners, iou

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .op import NmsAttributes


def reference(inputs: Sequence[Tensor | None], attributes: NmsAttributes) -> list[Tensor]:
    """Select boxes [B, S, 4] by scores [B, C, S], highest first; a selected box suppresses those that it overlaps."""
    boxes, scores = inputs
    assert boxes is not None
    assert scores is not None
    rows = []
    for image in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            boxes_kept = _selected(corners(boxes[image], attributes.is_centered), scores[image, kind], attributes)
            rows += [(image, kind, box) for box in boxes_kept]
    most = scores.shape[0] * scores.shape[1] * attributes.max_output_boxes
    selected = torch.full((most, 3), -1, dtype=torch.int64)
    if rows:
        selected[: len(rows)] = torch.tensor(rows)
    return [selected, torch.tensor([len(rows)])]


def _selected(boxes: Tensor, scores: Tensor, attributes: NmsAttributes) -> list[int]:
    kept: list[int] = []
    for box in torch.argsort(scores, descending=True, stable=True).tolist():
        if len(kept) == attributes.max_output_boxes or scores[box] <= attributes.score_threshold:
            break
        if all(iou(boxes[box], boxes[other]) <= attributes.iou_threshold for other in kept):
            kept.append(box)
    return kept
