"""Greedy NMS as a loop: each step selects the best pair of box and class and drops what it suppresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32, INT32
from trtkit.network.lowering.boxes import corners, overlaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.ops import Ops, T

    from .op import EfficientNmsAttributes

FORMS = ("loop",)
_GONE = -3.4e38


def lower(o: Ops[T], inputs: Sequence[T | None], attributes: EfficientNmsAttributes, form: str) -> list[T]:  # noqa: ARG001
    """Select max_output_boxes pairs, one per step. Pairs are flattened: S boxes by C classes.

    `turns` records when a pair was selected: max_output_boxes for the first, 1 for the last, 0 for never.
    """
    boxes, scores = inputs
    assert boxes is not None
    assert scores is not None
    most, classes = attributes.max_output_boxes, scores.shape[2]
    with o.fp32():
        ends = corners(o, o.cast(boxes, FP32), is_centered=attributes.is_centered)
        compared = o.cast(scores, FP32)
        compared = o.unary("sigmoid", compared) if attributes.has_sigmoid else compared
        left = o.select(compared > attributes.score_threshold, compared, compared * 0.0 + _GONE)
        kinds = o.constant(np.arange(classes, dtype=np.int32).reshape(1, 1, classes))
        numbers = o.reshape(o.arange(o.size(scores, 1), INT32), [1, -1, 1]) * classes + kinds  # [1, S, C]
        turn = o.constant(np.full((1, 1, 1), most, np.float32))

        def step(state: Sequence[T]) -> list[T]:
            left, turns, turn, ends, numbers = state
            best, at = o.top_k(o.reshape(left, [0, -1]), 1)  # [B, 1]
            one = o.gather_nd(ends, o.unsqueeze(o.binary("floor_div", at, classes), 2), batch_dims=1)  # [B, 1, 5]
            at = o.unsqueeze(at, 2)  # [B, 1, 1]
            is_best = o.binary("eq", numbers, at)
            hit = o.transpose(overlaps(o, one, ends, attributes.iou_threshold), (0, 2, 1))  # [B, S, 1]
            if not attributes.is_class_agnostic:
                hit = hit & o.binary("eq", _kind(o, numbers, classes), _kind(o, at, classes))
            turns = o.select(is_best & (o.unsqueeze(best, 2) > _GONE * 0.99), turn, turns)
            gone = left * 0.0 + _GONE
            return [o.select(o.binary("or", is_best, hit), gone, left), turns, turn - 1.0, ends, numbers]

        turns = o.repeat(most, [left, compared * 0.0, turn, ends, numbers], step)[1]
        count, best, score, kind = _kept(o, boxes, compared, turns, most)
        return [count, best, o.cast(score, scores.dtype), kind]


def _kept(o: Ops[T], boxes: T, scores: T, turns: T, most: int) -> tuple[T, T, T, T]:
    """Return the outputs, padded with zeros. scores: those that were compared; the output has their type."""
    classes = scores.shape[2]
    value, at = o.top_k(o.pad(o.reshape(turns, [0, -1]), 1, 0, most), most)  # [B, M]
    is_kept = o.cast(value > 0.0, INT32)
    at = at * is_kept
    kept = o.cast(is_kept, FP32)
    box = o.unsqueeze(o.binary("floor_div", at, classes), 2)
    best_boxes = o.gather_nd(o.cast(boxes, FP32), box, batch_dims=1) * o.unsqueeze(kept, 2)
    score = o.gather_elements(o.reshape(scores, [0, -1]), at, 1) * kept
    count = o.cast(o.reduce("sum", kept, [1], keep=True), INT32)
    return count, o.cast(best_boxes, boxes.dtype), score, _kind(o, at, classes)


def _kind(o: Ops[T], number: T, classes: int) -> T:
    """Return the class of a pair."""
    return number - o.binary("floor_div", number, classes) * classes
