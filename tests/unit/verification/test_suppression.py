"""Boxes that two runs selected, matched as sets; and the replay of one run's own selection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from trtkit.config.task import Boxes
from trtkit.network.onnx.nms import NMS_OUTPUTS
from trtkit.verification.suppression import check_selection, matched

if TYPE_CHECKING:
    from trtkit.arrays import Arrays

OPTIONS = Boxes(layout="channels-first", nms="engine", min_score=0.3, max_boxes=4)
BOXES = np.array([[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]], np.float32)
ROWS = np.array(
    [[5, 5, 10, 10, 0.8, 0.1], [6, 5, 10, 10, 0.7, 0.1], [25, 5, 10, 10, 0.1, 0.8], [45, 5, 10, 10, 0.5, 0.2]],
    np.float32,
).T[None]


def outputs(boxes: object, scores: object, classes: object, count: int | None = None) -> Arrays:
    """Return one image's outputs."""
    arrays = (np.asarray(boxes, np.float32), np.asarray(scores, np.float32), np.asarray(classes, np.int32))
    counts = np.array([[len(arrays[1]) if count is None else count]], np.int32)
    return dict(zip(NMS_OUTPUTS, (counts, *(each[None] for each in arrays)), strict=True))


SELECTED = outputs(BOXES, [0.8, 0.8, 0.5], [0, 1, 0])


def test_another_order_of_equal_scores_is_right() -> None:
    for order in ([0, 1, 2], [1, 0, 2]):
        one = outputs(BOXES[order], [0.8, 0.8, 0.5], np.array([0, 1, 0])[order])
        assert check_selection(ROWS, one, OPTIONS).passed


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (outputs(BOXES[:2], [0.8, 0.8], [0, 1]), "image 0, class 0 with score 0.500000 was not selected"),
        (
            outputs(BOXES[[0, 2, 1]], [0.8, 0.5, 0.8], [0, 0, 1]),
            "image 0, box 1: class 0 with score 0.500000 was selected; class 1 with score 0.800000 comes next",
        ),
        (
            outputs([*BOXES, [1, 0, 11, 10]], [0.8, 0.8, 0.5, 0.7], [0, 1, 0, 0]),
            "image 0, box 3: class 0 with score 0.700000 was selected; no box comes next",
        ),
        (
            outputs(BOXES + np.float32(0.01), [0.8, 0.8, 0.5], [0, 1, 0]),
            "image 0, box 0: class 0 with score 0.800000 was selected; class 0 with score 0.800000 comes next",
        ),
        (
            outputs(BOXES, [0.8, 0.8, 0.5], [0, 0, 0]),
            "image 0, box 1: class 0 with score 0.800000 was selected; class 1 with score 0.800000 comes next",
        ),
    ],
)
def test_what_is_not_the_best_box_left_is_named(wrong: Arrays, problem: str) -> None:
    checked = check_selection(ROWS, wrong, OPTIONS)
    assert (checked.passed, checked.problem) == (False, problem)


def test_boxes_of_two_runs_match_in_any_order() -> None:
    other = outputs(BOXES[::-1] + np.float32(0.001), [0.5, 0.8, 0.8], [0, 1, 0])
    ours, theirs, unshared = matched(SELECTED, other, 1e-3)
    assert unshared == 0
    assert np.abs(ours["detection_boxes"] - theirs["detection_boxes"]).max() < 0.01
    assert ours["detection_scores"].tolist() == theirs["detection_scores"].tolist()


@pytest.mark.parametrize(
    ("other", "share"),
    [
        (outputs(BOXES, [0.8, 0.8, 0.5], [0, 1, 1]), 1 / 3),  # another class
        (outputs(BOXES + np.float32([[0], [0], [8]]), [0.8, 0.8, 0.5], [0, 1, 0]), 1 / 3),  # another place
        (outputs(BOXES + np.float32([[0], [0], [2]]), [0.8, 0.8, 0.5], [0, 1, 0]), 1 / 3),  # overlaps, but is far
        (outputs(BOXES, [0.8, 0.8, 0.0], [0, 1, 0], count=2), 1 / 5),
        (outputs(BOXES, [0, 0, 0], [0, 0, 0], count=0), 1),
    ],
)
def test_boxes_of_one_run_alone_are_counted(other: Arrays, share: float) -> None:
    assert matched(SELECTED, other, 1e-3)[2] == pytest.approx(share)
