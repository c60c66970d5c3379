"""Detectors are compared by what they detect: boxes by IoU and class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trtkit.verification.answers import agreement
from trtkit.verification.compare import compare
from trtkit.verification.detections import layout_of, read_detections
from trtkit.verification.slices import limits_of

Arrays = dict[str, np.ndarray]


def yolo(seed: int = 0) -> np.ndarray:
    """An output [1, 84, 2100] as YOLOv8's: boxes in pixels, scores of background, and a few objects."""
    generator = np.random.default_rng(seed)
    centers, sizes = generator.uniform(50, 590, (1, 2, 2100)), generator.uniform(20, 90, (1, 2, 2100))
    scores = 10 ** generator.uniform(-6, -4, (1, 80, 2100))
    for kind in (3, 17, 40):
        scores[0, kind, generator.integers(0, 2100, 4)] = generator.uniform(0.4, 0.95, 4)
    return np.concatenate([centers, sizes, scores], 1)


def agreed(ours: np.ndarray | Arrays, theirs: np.ndarray | Arrays) -> float | None:
    """Return the share of detections that both have, None where nothing was compared."""
    pair = tuple(side if isinstance(side, dict) else {"output0": side} for side in (ours, theirs))
    found = agreement(None, Path(), [pair])
    return found.agreement if found.measure == "detections" else None


def swapped(output: np.ndarray) -> np.ndarray:
    return np.concatenate([output[:, :4], output[:, :3:-1]], 1)


def emptied(output: np.ndarray) -> np.ndarray:
    return np.concatenate([output[:, :4], 0 * output[:, 4:]], 1)


@pytest.mark.parametrize("destroyed", [swapped(yolo()), emptied(yolo())], ids=["all classes swapped", "no detections"])
@pytest.mark.parametrize("tolerance", [1e-4, 0.02, 0.16, 0.4])
def test_a_destroyed_detector_is_wrong_however_small_its_error(destroyed: np.ndarray, tolerance: float) -> None:
    limits = limits_of(tolerance)
    compared = compare(destroyed, yolo(), limits.floor)
    assert compared.relative_rms_error < 1e-3
    assert not compared.is_within(limits)
    assert agreed(destroyed, yolo()) == 0.0


def test_rounding_changes_no_detection() -> None:
    theirs = yolo()
    ours = theirs.astype(np.float16).astype(np.float64)
    assert compare(ours, theirs, limits_of(0.02).floor).is_within(limits_of(0.02))
    assert agreed(ours, theirs) == 1.0


def test_a_moved_box_is_another_object() -> None:
    ours = yolo()
    ours[:, 0] += 200
    assert agreed(ours, yolo()) == 0.0


def test_scores_near_the_threshold_may_fall_on_either_side() -> None:
    theirs = emptied(yolo())
    theirs[0, 9, 5] = 0.26
    ours = theirs.copy()
    ours[0, 9, 5] = 0.24
    assert agreed(ours, theirs) == 1.0
    ours[0, 9, 5] = 0.15
    assert agreed(ours, theirs) == 0.0


def test_suppressed_rows_and_anchors_are_read() -> None:
    rows = np.zeros((1, 300, 6))
    rows[0, :2] = [[10, 10, 50, 60, 0.9, 7], [300, 310, 350, 360, 0.4, 2]]
    assert layout_of({"output0": rows}) == "suppressed"
    (found,) = read_detections({"output0": rows}, "suppressed")
    assert found.boxes.tolist() == [[10, 10, 50, 60], [300, 310, 350, 360]]
    assert (found.classes.tolist(), found.scores.tolist()) == ([7, 2], [0.9, 0.4])
    old = yolo().transpose(0, 2, 1)
    anchors = np.concatenate([old[..., :4], np.ones((1, 2100, 1)), old[..., 4:]], -1)
    assert layout_of({"output0": anchors}) == "anchors"
    assert agreed(anchors, anchors) == 1.0


def test_queries_are_read_whether_a_class_stands_for_nothing_or_not() -> None:
    boxes = np.tile([0.5, 0.5, 0.2, 0.2], (1, 20, 1)) + np.arange(20)[None, :, None] * [0.3, 0.3, 0, 0]
    sigmoids, softmax = np.full((1, 20, 5), -6.0), np.zeros((1, 20, 5))
    sigmoids[0, 3, 2] = 2.0
    softmax[..., -1] = 8.0
    softmax[0, 3] = [0, 0, 8, 0, 0]
    for logits in (sigmoids, softmax):
        theirs = {"logits": logits, "pred_boxes": boxes}
        (found,) = read_detections(theirs, layout_of(theirs))
        assert (found.classes.tolist(), found.boxes.round(2).tolist()) == ([2], [[1.3, 1.3, 1.5, 1.5]])
        assert agreed(theirs, theirs) == 1.0
        assert agreed({"logits": np.roll(logits, 1, -1), "pred_boxes": boxes}, theirs) == 0.0


@pytest.mark.parametrize(
    "outputs",
    [
        {"logits": np.zeros((1, 1000))},
        {"last_hidden_state": np.random.default_rng(0).standard_normal((1, 197, 768))},
        {"mask": np.zeros((1, 1, 64, 64))},
        {"probabilities": np.full((1, 40, 97), 1 / 97)},
        {"a": np.zeros((1, 20, 5)), "b": np.zeros((1, 20, 4))},
    ],
    ids=lambda outputs: next(iter(outputs)),
)
def test_what_is_not_plainly_a_detector_is_not_read_as_one(outputs: Arrays) -> None:
    assert layout_of(outputs) is None
    assert agreed(outputs, outputs) is None


def test_detecting_nothing_says_nothing() -> None:
    assert agreed(emptied(yolo()), emptied(yolo())) is None
