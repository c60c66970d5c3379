"""Greedy NMS as a loop: each step selects the best remaining box and drops those it overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32, INT32, INT64
from trtkit.network.lowering.boxes import corners, overlaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.ops import Ops, T

    from .op import NmsAttributes

FORMS = ("loop",)
_GONE = -3.4e38


def lower(o: Ops[T], inputs: Sequence[T | None], attributes: NmsAttributes, form: str) -> list[T]:  # noqa: ARG001
    """Select max_output_boxes boxes, one per step, in all classes of all images at once.

    `turns` records when a box was selected: max_output_boxes for the first, 1 for the last, 0 for never.
    """
    boxes, scores = inputs
    assert boxes is not None
    assert scores is not None
    most = attributes.max_output_boxes
    with o.fp32():
        ends = corners(o, o.cast(boxes, FP32), is_centered=attributes.is_centered)
        scores = o.cast(scores, FP32)
        gone = scores * 0.0 + _GONE
        left = o.select(scores > attributes.score_threshold, scores, gone)
        index = o.reshape(o.arange(o.size(scores, 2), INT32), [1, 1, -1])
        turn = o.constant(np.full((1, 1, 1), most, np.float32))

        def step(state: Sequence[T]) -> list[T]:
            left, turns, turn, ends, index = state
            best, at = o.top_k(left, 1)  # [B, C, 1]
            is_best = o.binary("eq", index, at)
            hit = overlaps(o, o.gather_nd(ends, at, batch_dims=1), ends, attributes.iou_threshold)
            turns = o.select(is_best & (best > _GONE * 0.99), turn, turns)
            return [o.select(o.binary("or", is_best, hit), left * 0.0 + _GONE, left), turns, turn - 1.0, ends, index]

        turns = o.repeat(most, [left, scores * 0.0, turn, ends, index], step)[1]
        return _rows(o, turns, most)


def _rows(o: Ops[T], turns: T, most: int) -> list[T]:
    """Return rows (image, class, box) in order of image, class and selection, then rows of -1; and the count of rows.

    A class's rows follow those of the previous class; unused rows all go to one slot after the others.
    """
    value, box = o.top_k(o.pad(turns, 2, 0, most), most)  # [B, C, M]
    is_row = o.cast(value > 0.0, INT32)
    zero = is_row * 0
    image = zero + o.reshape(o.arange(o.size(turns, 0), INT32), [-1, 1, 1])
    kind = zero + o.reshape(o.arange(o.size(turns, 1), INT32), [1, -1, 1])
    rows = o.reshape(o.stack([image, kind, box], 3), [-1, 3])
    counts = o.reshape(o.reduce("sum", o.cast(is_row, FP32), [2]), [-1, 1])  # [B * C, 1]
    number = o.arange(o.size(counts, 0), FP32)
    is_before = o.cast(o.unsqueeze(number, 1) > o.unsqueeze(number, 0), FP32)
    start = o.cast(o.matmul(is_before, counts), INT32)  # [B * C, 1]
    target = start + o.reshape(o.arange(most, INT32), [1, most])
    slots = o.arange(o.size(rows, 0), INT32)  # [B * C * M]
    behind = o.reduce("max", slots, [0], keep=True) + 1
    target = o.select(o.reshape(is_row, [-1]) > 0, o.reshape(target, [-1]), behind)
    blank = o.concat([rows * 0 - 1, o.constant(np.full((1, 3), -1, np.int32))], 0)
    placed = o.gather(o.scatter_nd(blank, o.unsqueeze(target, 1), rows), slots, 0)
    count = o.reduce("sum", counts, [0])  # [1]
    return [o.cast(placed, INT64), o.cast(count, INT64)]
