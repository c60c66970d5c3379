"""Detections read from a detector's outputs, and how many of them two runs share.

Only outputs that are plainly a detector's are read: boxes and class scores per query (DETR), rows of boxes and scores
per anchor (YOLO), and rows of corners, score and class (after suppression).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.runtime.tasks.boxes import BoxLimits, Detections, corners, iou, probabilities, read_rows, suppress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array, Arrays
    from trtkit.runtime.tasks.boxes import Layout, Scores

SCORE, MARGIN = 0.25, 0.05
"""Score of detections that the other run must also have, and how much lower it may score them."""
_SAME, _SUPPRESS = 0.5, 0.5
"""IoU of boxes that are the same object, and IoU at which non-maximum suppression merges boxes of one class."""
_MOST, _FEWEST_ANCHORS = 300, 50
_LIMITS = BoxLimits(SCORE - MARGIN, _SUPPRESS, _MOST)


def read_detections(outputs: Mapping[str, Array], layout: Layout) -> list[Detections]:
    """Return the detections of each image. layout: `layout_of` the reference's outputs."""
    arrays = [np.nan_to_num(np.asarray(value, np.float64)) for value in outputs.values()]
    if layout != "queries":
        return [suppress(rows, _LIMITS) for rows in read_rows(arrays[0], layout)]
    boxes, logits = sorted(arrays, key=lambda array: array.shape[-1] != 4)
    return [_of_queries(*pair) for pair in zip(boxes, logits, strict=True)]


def _of_queries(boxes: Array, logits: Array) -> Detections:
    """Return the detections of one image's queries; scores and boxes may have either form."""
    are_corners = bool((boxes[:, 2:] >= boxes[:, :2]).all())
    by_class = probabilities(logits, _scores_of(logits))
    classes = by_class.argmax(-1)
    pixels = boxes if are_corners else corners(boxes)
    best = by_class[np.arange(len(classes)), classes]
    return suppress(Detections(pixels, best, classes, boxes[:, :0]), _LIMITS)


def layout_of(outputs: Mapping[str, Array]) -> Layout | None:
    """Return how outputs encode detections; None if they are not plainly a detector's."""
    shapes = [value.shape for value in outputs.values()]
    if not shapes or any(len(shape) != 3 or 0 in shape for shape in shapes):
        return None
    if len(shapes) == 2:
        named = any("box" in name and shape[-1] == 4 for name, shape in zip(outputs, shapes, strict=True))
        return "queries" if named and shapes[0][:2] == shapes[1][:2] and _has_one_box(shapes) else None
    rows = next(iter(outputs.values())).astype(np.float64)
    if len(shapes) == 1 and is_suppressed(rows):
        return "suppressed"
    is_first = rows.shape[1] < rows.shape[2]
    rows = rows.transpose(0, 2, 1) if is_first else rows
    if len(shapes) != 1 or rows.shape[2] < 5 or rows.shape[1] < _FEWEST_ANCHORS or not _are_boxes(rows):
        return None
    if is_first:
        return "channels-first" if _are_scores(rows[..., 4:]) else None
    return "anchors" if rows.shape[2] > 5 and _are_scores(rows[..., 4:]) else None


def counted_rows(ours: Array, theirs: Array, floor: float) -> tuple[Array, Array]:
    """Return, in pairs, the rows [K, F] of suppressed outputs [N, M, F] that either side scores at least `floor`.

    Rows below it are the last that a TopK selected: near ties there come in any order, or are different boxes.
    """
    paired = paired_rows({"rows": ours}, {"rows": theirs})["rows"]
    counts = (paired[..., 4] >= floor) | (theirs[..., 4] >= floor) | ~np.isfinite(paired).all(-1)
    return paired[counts], theirs[counts]


def is_suppressed(rows: Array) -> bool:
    """Whether an output is plainly rows of corners, score and class: [N, M, 6]."""
    if rows.ndim != 3 or rows.shape[2] != 6 or rows.shape[1] < _FEWEST_ANCHORS or not np.isfinite(rows).all():
        return False
    scores, classes = rows[..., 4], rows[..., 5]
    if not _are_scores(scores) or (classes < 0).any() or not np.array_equal(classes, classes.round()):
        return False
    return bool((np.diff(scores, axis=1) <= 0).all()) or _are_boxes(rows)


def shared(ours: Detections, theirs: Detections, min_score: float = SCORE) -> tuple[int, int]:
    """Return how many detections of either side the other side shares, and how many there are.

    min_score: score of the detections that the other side must have; it may score them lower by `MARGIN`.
    """
    matches = [
        _is_in(int(index), one, other, min_score - MARGIN)
        for one, other in ((ours, theirs), (theirs, ours))
        for index in np.flatnonzero(one.scores >= min_score)
    ]
    return sum(matches), len(matches)


def _is_in(index: int, one: Detections, other: Detections, least: float) -> bool:
    """Whether the other run has the same detection with a score of at least `least`."""
    alike = (other.classes == one.classes[index]) & (other.scores >= least)
    return bool((iou(one.boxes[index], other.boxes[alike]) >= _SAME).any())


def _scores_of(logits: Array) -> Scores:
    """Return the form of scores [Q, C].

    Probabilities, sigmoid logits, or softmax logits whose last class is "no object".
    """
    if ((logits >= 0) & (logits <= 1)).all():
        return "probabilities"
    return "softmax" if np.median(logits.max(-1)) > 0 else "sigmoid"


def _has_one_box(shapes: list[tuple[int, ...]]) -> bool:
    return sum(shape[-1] == 4 for shape in shapes) == 1


def _are_boxes(rows: Array) -> bool:
    """Whether rows start with boxes in pixels, of non-negative sizes, followed by a score."""
    return bool((rows[..., 2:4] >= 0).all() and rows[..., :4].max() > 2 and _are_scores(rows[..., 4:5]))


def _are_scores(values: Array) -> bool:
    return bool((values >= 0).all() and (values <= 1).all())


# In multiples of the tolerance: rows farther apart than this are not the same proposal.
_FAR = 10.0


def paired_rows(ours: Arrays, theirs: Arrays) -> Arrays:
    """Return `ours` with each image's rows in the reference's order: [B, Q, ...], the same order in all outputs.

    Each row of the reference takes the nearest remaining row. Rows without a partner show up as errors, as they should.
    """
    order = [_order(_rows(ours, image), _rows(theirs, image)) for image in range(len(next(iter(ours.values()))))]
    return {name: np.stack([value[image][rows] for image, rows in enumerate(order)]) for name, value in ours.items()}


def partners(ours: Arrays, theirs: Arrays, tolerance: float) -> tuple[Arrays, Arrays, float]:
    """Return paired rows of both sides, concatenated, without those that have no partner, and the share of the latter.

    A detector proposes its best locations; near the cut-off, scores are so close that rounding selects others. Such a
    row is far from every row of the other side: more than ten times the tolerance, in the relative distance over all
    outputs.
    """
    count = len(next(iter(theirs.values())))
    near = np.stack([_is_near(_rows(ours, image), _rows(theirs, image), tolerance) for image in range(count)])
    near |= ~np.stack([_is_finite(ours, image) for image in range(count)])  # these show as errors
    kept = [{name: value[near] for name, value in side.items()} for side in (ours, theirs)]
    return kept[0], kept[1], float(1 - near.mean())


def _is_near(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], tolerance: float) -> np.ndarray[Any, Any]:
    """Return which rows are the same, [Q]."""
    distance = np.linalg.norm(ours - theirs, axis=1)
    is_near: np.ndarray[Any, Any] = distance <= _FAR * tolerance * np.linalg.norm(theirs, axis=1)
    return is_near


def _is_finite(arrays: Arrays, image: int) -> np.ndarray[Any, Any]:
    """Return which rows of an image are finite, [Q]."""
    parts = [np.isfinite(value[image]).reshape(value.shape[1], -1).all(axis=1) for value in arrays.values()]
    return np.asarray(np.stack(parts).all(axis=0))


def _rows(arrays: Arrays, image: int) -> np.ndarray[Any, Any]:
    """Return all outputs of an image concatenated by row: [Q, F], each output scaled to unit size."""
    flat = [np.nan_to_num(value[image].astype(np.float64)).reshape(value.shape[1], -1) for value in arrays.values()]
    return np.concatenate([part / (np.linalg.norm(part) or 1.0) for part in flat], axis=1)


def _order(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> list[int]:
    """Return, for each row of the reference, the index of our row that it is paired with."""
    distances = ((theirs**2).sum(1)[:, None] + (ours**2).sum(1)[None] - 2 * theirs @ ours.T).clip(0)
    order = np.full(len(theirs), -1)
    for _ in range(len(theirs)):
        row, column = np.unravel_index(np.argmin(distances), distances.shape)
        order[row] = column
        distances[row, :], distances[:, column] = np.inf, np.inf
    return [int(column) for column in order]
