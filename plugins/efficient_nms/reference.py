"""NMS with padded outputs in plain torch. Source: TensorRT's efficientNMSPlugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..boxes.reference import corners, iou

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .op import EfficientNmsAttributes


def reference(inputs: Sequence[Tensor | None], attributes: EfficientNmsAttributes) -> list[Tensor]:
    """Select each image's pairs of box and class, highest score first, padded with zeros."""
    boxes, scores = inputs
    assert boxes is not None
    assert scores is not None
    scores = torch.sigmoid(scores) if attributes.has_sigmoid else scores
    images, most = scores.shape[0], attributes.max_output_boxes
    count = torch.zeros(images, 1, dtype=torch.int32)
    kept_boxes = torch.zeros(images, most, 4, dtype=boxes.dtype)
    kept_scores = torch.zeros(images, most, dtype=scores.dtype)
    classes = torch.zeros(images, most, dtype=torch.int32)
    for image in range(images):
        pairs = _selected(corners(boxes[image], attributes.is_centered), scores[image], attributes)
        count[image] = len(pairs)
        for index, (box, kind) in enumerate(pairs):
            kept_boxes[image, index], kept_scores[image, index] = boxes[image, box], scores[image, box, kind]
            classes[image, index] = kind
    return [count, kept_boxes, kept_scores, classes]


def _selected(boxes: Tensor, scores: Tensor, attributes: EfficientNmsAttributes) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for number in torch.argsort(scores.flatten(), descending=True, stable=True).tolist():
        box, kind = divmod(number, scores.shape[1])
        if len(pairs) == attributes.max_output_boxes or scores[box, kind] <= attributes.score_threshold:
            break
        rivals = [other for other, its in pairs if attributes.is_class_agnostic or its == kind]
        if all(iou(boxes[box], boxes[other]) <= attributes.iou_threshold for other in rivals):
            pairs.append((box, kind))
    return pairs
