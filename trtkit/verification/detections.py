"""Detections read from a detector's outputs, and how many of them two runs share.

Only outputs that are plainly a detector's are read: boxes and class scores by query (DETR), rows of boxes and scores by
anchor (YOLO), and rows of corners, score and class (after suppression).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Array = np.ndarray[Any, Any]

_SCORE, _MARGIN = 0.25, 0.05
"""Detections that the other run must have, and how much lower it may score them."""
_SAME, _SUPPRESS = 0.5, 0.5
"""IoU of boxes that are the same object, and of those of one class that non-maximum suppression joins."""
_MOST, _FEWEST_ANCHORS = 300, 50


@dataclass(frozen=True)
class Detections:
    """One image's. boxes: corners [N, 4]. scores, classes: [N]."""

    boxes: Array
    scores: Array
    classes: Array


def read_detections(outputs: Mapping[str, Array], layout: str) -> list[Detections]:
    """Return the detections of each image. layout: as `layout_of` the reference's outputs says."""
    arrays = [np.nan_to_num(np.asarray(value, np.float64)) for value in outputs.values()]
    if layout == "queries":
        boxes, logits = sorted(arrays, key=lambda array: array.shape[-1] != 4)
        return [_strongest(_corners(pair[0]), _probabilities(pair[1])) for pair in zip(boxes, logits, strict=True)]
    rows = arrays[0].transpose(0, 2, 1) if layout == "channels first" else arrays[0]
    if layout == "suppressed":
        return [_suppressed(Detections(image[:, :4], image[:, 4], image[:, 5])) for image in rows]
    scores = rows[..., 4:] if layout == "channels first" else rows[..., 4:5] * rows[..., 5:]
    return [_strongest(_from_centers(each), by_class) for each, by_class in zip(rows[..., :4], scores, strict=True)]


def layout_of(outputs: Mapping[str, Array]) -> str:
    """Return how outputs hold detections; empty if they are not plainly a detector's."""
    shapes = [value.shape for value in outputs.values()]
    if not shapes or any(len(shape) != 3 or 0 in shape for shape in shapes):
        return ""
    if len(shapes) == 2:
        named = any("box" in name and shape[-1] == 4 for name, shape in zip(outputs, shapes, strict=True))
        return "queries" if named and shapes[0][:2] == shapes[1][:2] and _has_one_box(shapes) else ""
    rows = next(iter(outputs.values())).astype(np.float64)
    is_first = rows.shape[1] < rows.shape[2]
    rows = rows.transpose(0, 2, 1) if is_first else rows
    if len(shapes) != 1 or rows.shape[2] < 5 or rows.shape[1] < _FEWEST_ANCHORS or not _are_boxes(rows):
        return ""
    if is_first:
        return "channels first" if _are_scores(rows[..., 4:]) else ""
    if rows.shape[2] == 6 and np.array_equal(rows[..., 5], rows[..., 5].round()):
        return "suppressed"
    return "anchors" if rows.shape[2] > 5 and _are_scores(rows[..., 4:]) else ""


def shared(ours: Detections, theirs: Detections) -> tuple[int, int]:
    """Return how many detections of both sides the other side has too, and how many there are."""
    matches = [_is_in(index, one, other) for one, other in ((ours, theirs), (theirs, ours)) for index in _clear(one)]
    return sum(matches), len(matches)


def _clear(detections: Detections) -> Iterator[int]:
    return (int(index) for index in np.flatnonzero(detections.scores >= _SCORE))


def _is_in(index: int, one: Detections, other: Detections) -> bool:
    """Whether the other run has a detection, perhaps just below the threshold."""
    alike = (other.classes == one.classes[index]) & (other.scores >= _SCORE - _MARGIN)
    return bool((_iou(one.boxes[index], other.boxes[alike]) >= _SAME).any())


def _strongest(boxes: Array, scores: Array) -> Detections:
    """Return the best class of each row [N, C], suppressed."""
    classes = scores.argmax(-1)
    return _suppressed(Detections(boxes, scores[np.arange(len(scores)), classes], classes))


def _suppressed(detections: Detections) -> Detections:
    """Return what greedy non-maximum suppression within classes leaves, the strongest first."""
    scores = detections.scores
    order = [index for index in np.argsort(-scores, kind="stable") if scores[index] >= _SCORE - _MARGIN]
    kept: list[int] = []
    for index in order[:_MOST]:
        rivals = [other for other in kept if detections.classes[other] == detections.classes[index]]
        if not (_iou(detections.boxes[index], detections.boxes[rivals]) > _SUPPRESS).any():
            kept.append(int(index))
    return Detections(detections.boxes[kept], detections.scores[kept], detections.classes[kept])


def _iou(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of one box with others [N, 4]."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    inside = (high - low).clip(0).prod(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(-1) + (box[2:] - box[:2]).clip(0).prod()
    return np.asarray(inside / np.maximum(areas - inside, 1e-12))


def _from_centers(boxes: Array) -> Array:
    """Return corners of boxes given by center and size."""
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def _corners(boxes: Array) -> Array:
    """Return corners of boxes; those that are corners already have their second behind the first."""
    return boxes if (boxes[:, 2:] >= boxes[:, :2]).all() else _from_centers(boxes)


def _probabilities(logits: Array) -> Array:
    """Return class scores of queries [Q, C]: sigmoids, or a softmax whose last class is none, where most are sure."""
    if ((logits >= 0) & (logits <= 1)).all():
        return logits
    if np.median(logits.max(-1)) > 0:
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        return np.asarray((powers / powers.sum(-1, keepdims=True))[:, :-1])
    return np.asarray(1 / (1 + np.exp(-logits.clip(-80, 80))))


def _has_one_box(shapes: list[tuple[int, ...]]) -> bool:
    return sum(shape[-1] == 4 for shape in shapes) == 1


def _are_boxes(rows: Array) -> bool:
    """Whether rows begin with boxes in pixels, whose sizes are not negative, followed by a score."""
    return bool((rows[..., 2:4] >= 0).all() and rows[..., :4].max() > 2 and _are_scores(rows[..., 4:5]))


def _are_scores(values: Array) -> bool:
    return bool((values >= 0).all() and (values <= 1).all())
