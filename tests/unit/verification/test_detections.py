"""Detectors are compared by what they detect: boxes by IoU and class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trtkit.verification.answers import agreement
from trtkit.verification.compare import compare, limits_of
from trtkit.verification.detections import layout_of, paired_rows, partners, read_detections

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


def test_rows_get_the_references_order_in_all_outputs() -> None:
    generator = np.random.default_rng(0)
    theirs = {"logits": generator.standard_normal((2, 7, 5)), "boxes": generator.uniform(size=(2, 7, 4))}
    order = np.array([generator.permutation(7) for _ in range(2)])
    ours = {name: np.take_along_axis(value, order[..., None], 1) + 1e-9 for name, value in theirs.items()}
    found = paired_rows(ours, theirs)
    for name, value in theirs.items():
        np.testing.assert_allclose(found[name], value, atol=1e-8)


def test_row_without_a_partner_stays_an_error() -> None:
    theirs = {"logits": np.array([[[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]])}
    ours = {"logits": np.array([[[0.0, 1.0], [1.0, 0.0], [-5.0, 5.0]]])}
    found = paired_rows(ours, theirs)["logits"][0]
    np.testing.assert_array_equal(found[:2], theirs["logits"][0][:2])
    np.testing.assert_array_equal(found[2], [-5.0, 5.0])


def test_values_that_are_no_numbers_are_paired_too() -> None:
    theirs = {"boxes": np.ones((1, 3, 4))}
    assert np.isnan(paired_rows({"boxes": np.full((1, 3, 4), np.nan)}, theirs)["boxes"]).all()


def test_rows_that_one_side_alone_has_are_left_out_and_counted() -> None:
    generator = np.random.default_rng(0)
    theirs = {"logits": generator.standard_normal((2, 10, 5)), "boxes": generator.uniform(size=(2, 10, 4))}
    ours = {name: value * 1.01 for name, value in theirs.items()}
    ours["logits"][1, 3], ours["boxes"][1, 3] = -theirs["logits"][1, 3], 0.0
    kept, wanted, share = partners(ours, theirs, 0.02)
    assert share == pytest.approx(1 / 20)
    assert {name: value.shape for name, value in kept.items()} == {"logits": (19, 5), "boxes": (19, 4)}
    for name, value in kept.items():
        np.testing.assert_allclose(value, wanted[name] * 1.01)


def test_rows_that_are_no_numbers_are_not_left_out() -> None:
    theirs = {"boxes": np.ones((1, 4, 4))}
    ours = {"boxes": np.array(np.ones((1, 4, 4)))}
    ours["boxes"][0, 2] = np.nan
    kept, _, share = partners(ours, theirs, 0.02)
    assert share == 0
    assert np.isnan(kept["boxes"]).any()


def test_a_result_that_is_wrong_everywhere_has_no_partners() -> None:
    generator = np.random.default_rng(0)
    theirs, ours = ({"boxes": generator.standard_normal((1, 50, 4))} for _ in range(2))
    assert partners(paired_rows(ours, theirs), theirs, 0.02)[2] > 0.5
