"""Agreement of a model's answers with the reference's: top-1 and top-5 classes, detections, or text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.runtime.tasks import ctc_characters, ctc_text, top_classes
from trtkit.runtime.tasks.reader import read_boxes
from trtkit.verification.detections import MARGIN, SCORE, layout_of, read_detections, shared
from trtkit.verification.report import Agreement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.arrays import Arrays
    from trtkit.config.task import Task
    from trtkit.runtime.tasks.boxes import Detections

# Detections near the threshold, or merged differently by NMS, may differ.
_DETECTIONS = 0.9
_TOP = 5


def agreement(
    task: Task | None, onnx: Path, pairs: Sequence[tuple[Arrays, Arrays]], required: float = 1.0
) -> Agreement:
    """Compare the answers in the first output of every (ours, reference) pair.

    onnx: holds the alphabet of a text task. Without a task, outputs that are plainly a detector's are decoded.
    required: the required share of equal answers if the task does not define one. Raises SourceError if there is no
    alphabet.
    """
    if task is None:
        return _detections(pairs, min(required, _DETECTIONS))
    if task.boxes is not None:
        required = min(required, _DETECTIONS) if task.min_agreement is None else task.min_agreement
        return _detections(pairs, required, task)
    if task.kind not in {"classification", "ctc-text"}:
        return Agreement()
    outputs = [(next(iter(ours.values())), next(iter(theirs.values()))) for ours, theirs in pairs]
    required = required if task.min_agreement is None else task.min_agreement
    if task.kind == "classification":
        return _classes(outputs, required)
    characters = ctc_characters(onnx)
    answers = [
        pair
        for ours, theirs in outputs
        for pair in zip(*(ctc_text(o, characters) for o in (ours, theirs)), strict=True)
    ]
    share = sum(a == b for a, b in answers) / len(answers)
    return Agreement("text", share, required, None, tuple(answers))


def _detections(pairs: Sequence[tuple[Arrays, Arrays]], required: float, task: Task | None = None) -> Agreement:
    """Compare detections by IoU and class; no agreement if outputs are not a detector's or detect nothing."""
    agreeing, total, counts = 0, 0, []
    for ours, theirs in pairs:
        sides = [_read(side, theirs, task) for side in (ours, theirs)]
        for mine, others in zip(*sides, strict=True):
            same, count = shared(mine, others, SCORE if task is None or task.boxes is None else task.boxes.min_score)
            agreeing, total = agreeing + same, total + count
            counts.append((f"{len(mine.scores)} boxes", f"{len(others.scores)} boxes"))
    return Agreement("detections", agreeing / total, required, None, tuple(counts)) if total else Agreement()


def _read(outputs: Arrays, reference: Arrays, task: Task | None) -> list[Detections]:
    """Return each image's detections, decoded by the task (with a lower score threshold) or by the outputs' layout."""
    if task is None or task.boxes is None:
        layout = layout_of(reference)
        return read_detections(outputs, layout) if layout else []
    lower = task.boxes.model_copy(update={"min_score": task.boxes.min_score - MARGIN})
    arrays = {name: np.nan_to_num(np.asarray(value, np.float64)) for name, value in outputs.items()}
    return read_boxes(task.model_copy(update={"boxes": lower}), arrays, (1, 1))


def _classes(outputs: Sequence[tuple[Any, Any]], required: float) -> Agreement:
    """Compare top-1 exactly, and top-5 as sets if there are more than five classes."""
    pairs = [pair for ours, theirs in outputs for pair in zip(top_classes(ours), top_classes(theirs), strict=True)]
    top_1 = sum(a[0] == b[0] for a, b in pairs) / len(pairs)
    has_more = outputs[0][0][0].size > _TOP
    top_5 = sum(len(set(a) & set(b)) / len(b) for a, b in pairs) / len(pairs) if has_more else None
    return Agreement("top-1", top_1, required, top_5, tuple((a[0], b[0]) for a, b in pairs))


def named(agreed: Agreement, labels: Sequence[str]) -> Agreement:
    """Return the agreement with the names of the classes in its answers; unchanged if classes have no names."""
    names = {
        str(value): labels[value]
        for pair in agreed.answers
        for value in pair
        if isinstance(value, int) and value in range(len(labels))
    }
    return replace(agreed, names=names)
