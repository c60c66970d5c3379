"""Non-maximum suppression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trtkit.reference.layer import Layer, Op, Tensor


def non_maximum_suppression(layer: Layer) -> Op:
    """Keep the best boxes of each batch item and class that overlap no better one by more than the IoU threshold.

    Inputs: boxes [B, n, 4] or [B, n, classes, 4], scores [B, n, classes], most boxes per class, IoU threshold, score
    threshold, which a score must exceed. Outputs: rows (batch, class, box) by batch, then falling score; their count.
    Of equal scores the first box leads. Source: INMSLayer in NvInfer.h.
    """
    is_corners = layer.option("bounding_box_format") == "CORNER_PAIRS"
    limit, index_dtype = layer.number("topk_box_limit"), layer.output_dtype(0)

    def run(
        boxes: Tensor, scores: Tensor, most: Tensor, iou: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        corners = _corners(boxes, is_corners)
        overlap, threshold = (0.0 if value is None else float(value) for value in (iou, least))
        count = min(int(most), limit)
        rows = []
        for batch in range(scores.shape[0]):
            detections = []
            for index in range(scores.shape[2]):
                candidates = corners[batch, :, index] if corners.dim() == 4 else corners[batch]
                score = scores[batch, :, index].double()
                kept = _suppress(candidates, score, overlap, threshold, count)
                detections += [(-float(score[box]), batch, index, box) for box in kept]
            rows += [row[1:] for row in sorted(detections, key=lambda row: row[0])]
        indices = torch.tensor(rows, dtype=index_dtype).reshape(-1, 3).to(boxes.device)
        return indices, torch.tensor(len(rows), dtype=layer.output_dtype(1))

    return run


def _corners(boxes: Tensor, is_corners: bool) -> Tensor:
    """Return boxes as low and high corners."""
    wide = boxes.double()
    first, second = wide[..., :2], wide[..., 2:]
    if not is_corners:
        first, second = first - second / 2, first + second / 2
    return torch.cat((torch.minimum(first, second), torch.maximum(first, second)), -1)


def _suppress(boxes: Tensor, score: Tensor, overlap: float, threshold: float, most: int) -> list[int]:
    """Return the boxes kept, best first. overlap: the most IoU of two. threshold: what scores exceed."""
    kept: list[int] = []
    order = torch.argsort(score, descending=True, stable=True).tolist()
    for box in order:
        if len(kept) >= most or not float(score[box]) > threshold:
            break
        if not kept or float(_overlap(boxes[box], boxes[kept]).max()) <= overlap:
            kept.append(box)
    return kept


def _overlap(box: Tensor, others: Tensor) -> Tensor:
    """Return intersection over union of one box with each of others."""
    size = (torch.minimum(box[2:], others[:, 2:]) - torch.maximum(box[:2], others[:, :2])).clamp(min=0)
    shared = size.prod(-1)
    area = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(-1) - shared
    return torch.where(area > 0, shared / area, torch.zeros_like(area))
