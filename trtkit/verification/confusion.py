"""Confusion matrices: which classes a model mistakes for which, in classified pictures and in detected objects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.tasks.boxes import iou

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtkit.runtime.tasks.answers import Box

    Corners = tuple[float, float, float, float]

SAME_OBJECT = 0.5
"""Smallest IoU at which a box matches an object; their classes may differ."""


@dataclass(frozen=True)
class ConfusedPair:
    """How often a class was predicted as another, or as itself. None, for detectors: no object."""

    truth: str | None
    predicted: str | None
    count: int


@dataclass(frozen=True)
class ClassAccuracy:
    """One class. recall: share of its items that are recognized. precision: share of its predictions that are right.

    Each is None if there are no items or no predictions.
    """

    name: str
    items: int
    predictions: int
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class Confusion:
    """A sparse confusion matrix.

    pairs: those that occur, most frequent first. min_score: score from which boxes count.
    """

    pairs: tuple[ConfusedPair, ...]
    min_score: float | None = None

    @property
    def errors(self) -> tuple[ConfusedPair, ...]:
        """The pairs of two different classes, most frequent first."""
        return tuple(pair for pair in self.pairs if pair.truth != pair.predicted)

    def classes(self) -> tuple[ClassAccuracy, ...]:
        """Return the accuracy of each class, sorted by name."""
        items, predictions, right = Counter[str](), Counter[str](), Counter[str]()
        for pair in self.pairs:
            if pair.truth is not None:
                items[pair.truth] += pair.count
            if pair.predicted is not None:
                predictions[pair.predicted] += pair.count
            if pair.truth is not None and pair.truth == pair.predicted:
                right[pair.truth] += pair.count
        return tuple(
            ClassAccuracy(
                name,
                items[name],
                predictions[name],
                right[name] / items[name] if items[name] else None,
                right[name] / predictions[name] if predictions[name] else None,
            )
            for name in sorted(items | predictions)
        )


def confusion_of(pairs: Iterable[tuple[str | None, str | None]], min_score: float | None = None) -> Confusion:
    """Return the confusion matrix of (truth, predicted) pairs."""
    counts = Counter(pairs).most_common()
    return Confusion(tuple(ConfusedPair(truth, predicted, count) for (truth, predicted), count in counts), min_score)


@dataclass(frozen=True)
class TrueBox:
    """An annotated object. is_crowd: a crowd area as in COCO, in which detections count as neither right nor wrong."""

    corners: Corners
    name: str
    is_crowd: bool = False


def matched_boxes(truth: Sequence[TrueBox], boxes: Iterable[Box]) -> list[tuple[str | None, str | None]]:
    """Return the (truth, predicted) pairs of one picture; each box takes the unmatched object with the largest IoU.

    Boxes of the right class are matched first, then by descending score. Objects without a box, and boxes without an
    object, are paired with None.
    """
    objects = [item for item in truth if not item.is_crowd]
    crowds = [item for item in truth if item.is_crowd]
    free, pairs = dict(enumerate(objects)), list[tuple[str | None, str | None]]()
    waiting = sorted(boxes, key=lambda box: -box.score)
    for is_same_class in (True, False):
        remaining = []
        for box in waiting:
            index = _nearest(box, {key: item for key, item in free.items() if (item.name == box.name) is is_same_class})
            if index is None:
                remaining.append(box)
            else:
                pairs.append((free.pop(index).name, box.name))
        waiting = remaining
    pairs += [(item.name, None) for item in free.values()]
    return pairs + [(None, box.name) for box in waiting if not _is_in_crowd(box, crowds)]


def _nearest(box: Box, objects: dict[int, TrueBox]) -> int | None:
    """Return the index of the object with the largest IoU; None if none overlaps enough."""
    if not objects:
        return None
    overlaps = iou(np.array(box.corners, np.float64), np.array([item.corners for item in objects.values()], np.float64))
    best = int(overlaps.argmax())
    return list(objects)[best] if overlaps[best] >= SAME_OBJECT else None


def _is_in_crowd(box: Box, crowds: Sequence[TrueBox]) -> bool:
    """Whether a crowd of the box's class covers at least half of the box."""
    x1, y1, x2, y2 = box.corners
    area = max((x2 - x1) * (y2 - y1), 1e-12)
    for crowd in crowds:
        left, top, right, bottom = crowd.corners
        inside = max(0.0, min(x2, right) - max(x1, left)) * max(0.0, min(y2, bottom) - max(y1, top))
        if crowd.name == box.name and inside / area >= SAME_OBJECT:
            return True
    return False
