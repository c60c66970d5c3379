"""Read a detector's outputs as boxes, and suppress those of one object.

Layouts, of pixels of the input unless said otherwise:

- `channels-first` [N, 4+C, A]: center x, center y, width, height, and a probability a class (YOLOv8, YOLO11).
- `anchors` [N, A, 5+C]: the same with an objectness before the classes (YOLOv5, YOLOX once decoded).
- `queries` boxes [N, Q, 4] as center and size in shares of the input, and logits [N, Q, C] (DETR and its kin).
- `suppressed` [N, M, 6]: corners, score, class; what is left after suppression, padded with rows of score 0.

`maps.py` reads maps of text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trtkit.runtime.tasks.classes import softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array, WidthHeight

Layout = Literal["channels-first", "anchors", "queries", "suppressed", "text-map"]
Scores = Literal["probabilities", "sigmoid", "softmax"]


@dataclass(frozen=True)
class Detections:
    """One image's boxes, by descending score. boxes: corners x1, y1, x2, y2 [M, 4]. scores, classes: [M].

    rest: other values in a row of the output, such as keypoints [M, R].
    """

    boxes: Array
    scores: Array
    classes: Array
    rest: Array


@dataclass(frozen=True)
class BoxLimits:
    """Limits on boxes. max_iou: overlap of two boxes of one class above which the lower-scoring one is dropped."""

    min_score: float = 0.25
    max_iou: float = 0.45
    max_boxes: int = 300


def read_rows(rows: Array, layout: Layout, classes: int | None = None) -> list[Detections]:
    """Return every row of one output as a box of its best class.

    classes: their number, if more values follow the scores.
    """
    if layout == "suppressed":
        return [_all(image[:, :4], image[:, 4], image[:, 5], image[:, 6:]) for image in rows]
    rows = rows.transpose(0, 2, 1) if layout == "channels-first" else rows
    first = 4 if layout == "channels-first" else 5
    last = rows.shape[2] if classes is None else first + classes
    scores = rows[..., first:last] if layout == "channels-first" else rows[..., 4:5] * rows[..., first:last]
    return [
        _best(corners(image[:, :4]), by_class, image[:, last:]) for image, by_class in zip(rows, scores, strict=True)
    ]


def read_queries(boxes: Array, logits: Array, scores: Scores, size: WidthHeight) -> list[Detections]:
    """Return queries as boxes in pixels. size: (width, height) of the input.

    With `softmax`, whose last class means "no object", a query has one class; with `sigmoid` it yields a box for each
    class (as DetrImageProcessor and RTDetrImageProcessor of transformers read them).
    """
    pixels = corners(boxes) * np.array([*size, *size])
    by_class = probabilities(logits, scores)
    read = _each_class if scores == "sigmoid" else _best
    return [read(image, class_scores, image[:, :0]) for image, class_scores in zip(pixels, by_class, strict=True)]


def read_selected(counts: Array, boxes: Array, scores: Array, classes: Array) -> list[Detections]:
    """Return the selection of a network with its own NMS: counts [N, 1], boxes [N, M, 4], scores and classes [N, M]."""
    return [
        _all(box[:count], score[:count], kind[:count], box[:count, :0])
        for count, box, score, kind in zip(counts[:, 0].astype(int), boxes, scores, classes, strict=True)
    ]


def probabilities(logits: Array, scores: Scores) -> Array:
    """Return class probabilities [..., C]."""
    if scores == "softmax":
        return softmax(logits)[..., :-1]
    return logits if scores == "probabilities" else np.asarray(1 / (1 + np.exp(-logits.clip(-80, 80))))


def suppress(detections: Detections, limits: BoxLimits) -> Detections:
    """Return the result of greedy per-class non-maximum suppression, by descending score."""
    scores = detections.scores
    order = [int(index) for index in np.argsort(-scores, kind="stable") if scores[index] >= limits.min_score]
    kept: list[int] = []
    for index in order:
        if len(kept) == limits.max_boxes:
            break
        rivals = [other for other in kept if detections.classes[other] == detections.classes[index]]
        if not (iou(detections.boxes[index], detections.boxes[rivals]) > limits.max_iou).any():
            kept.append(index)
    return chosen(detections, kept)


def strongest(detections: Detections, limits: BoxLimits) -> Detections:
    """Return the highest-scoring boxes of an output that needs no suppression."""
    order = np.argsort(-detections.scores, kind="stable")[: limits.max_boxes]
    return chosen(detections, [int(index) for index in order if detections.scores[index] >= limits.min_score])


def chosen(detections: Detections, rows: Sequence[int]) -> Detections:
    """Return the selected rows, in this order."""
    index = np.array(rows, dtype=np.int64)
    fields = (detections.boxes, detections.scores, detections.classes, detections.rest)
    return Detections(*(field[index] for field in fields))


def iou(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of one box with others [M, 4]."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    inside = (high - low).clip(0).prod(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(-1) + (box[2:] - box[:2]).clip(0).prod()
    return np.asarray(inside / np.maximum(areas - inside, 1e-12))


def corners(boxes: Array) -> Array:
    """Return corners of boxes [..., 4] from center and size."""
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def _best(boxes: Array, scores: Array, rest: Array) -> Detections:
    """Return the best class of each row [A, C]."""
    classes = scores.argmax(-1)
    return _all(boxes, scores[np.arange(len(scores)), classes], classes, rest)


def _each_class(boxes: Array, scores: Array, rest: Array) -> Detections:
    """Return each row [A, C] once per class."""
    rows, classes = np.divmod(np.arange(scores.size), scores.shape[1])
    return _all(boxes[rows], scores.reshape(-1), classes, rest[rows])


def _all(boxes: Array, scores: Array, classes: Array, rest: Array) -> Detections:
    return Detections(boxes, scores, classes.astype(np.int64), rest)
