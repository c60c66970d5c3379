"""Confusion matrices of classes and of detected objects; matches of boxes as pycocotools makes them."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from trtkit.runtime.tasks.answers import Box
from trtkit.verification.confusion import ClassAccuracy, ConfusedPair, TrueBox, confusion_of, matched_boxes

if TYPE_CHECKING:
    from trtkit.verification.confusion import Corners


def box(corners: Corners, name: str, score: float = 0.9) -> Box:
    return Box(corners, score, 0, name)


def test_shares_of_classes_follow_from_the_pairs() -> None:
    confusion = confusion_of([("cat", "cat")] * 3 + [("cat", "dog")] + [("dog", "dog"), ("dog", None), (None, "dog")])
    assert confusion.pairs[0] == ConfusedPair("cat", "cat", 3)
    assert {(pair.truth, pair.predicted) for pair in confusion.errors} == {("cat", "dog"), ("dog", None), (None, "dog")}
    assert confusion.classes() == (
        ClassAccuracy("cat", 4, 3, 0.75, 1.0),
        ClassAccuracy("dog", 2, 3, 0.5, pytest.approx(1 / 3)),
    )
    assert confusion_of([("elk", "cat")]).classes()[0].recall is None


@pytest.mark.parametrize(
    ("truth", "boxes", "pairs"),
    [
        ([TrueBox((0, 0, 10, 10), "cat")], [box((0, 0, 10, 9), "cat")], [("cat", "cat")]),
        ([TrueBox((0, 0, 10, 10), "cat")], [box((0, 0, 10, 9), "dog")], [("cat", "dog")]),
        ([TrueBox((0, 0, 10, 10), "cat")], [box((0, 0, 10, 4), "cat")], [("cat", None), (None, "cat")]),
        # Two boxes on one object: the second is one too many.
        (
            [TrueBox((0, 0, 10, 10), "cat")],
            [box((0, 0, 10, 9), "cat", 0.5), box((0, 0, 10, 10), "cat")],
            [("cat", "cat"), (None, "cat")],
        ),
        # A box of another class that is surer does not take the object from the right one.
        (
            [TrueBox((0, 0, 10, 10), "cat")],
            [box((0, 0, 10, 10), "dog"), box((0, 0, 10, 9), "cat", 0.3)],
            [("cat", "cat"), (None, "dog")],
        ),
        # What lies in a crowd is neither right nor wrong, unless its class is another.
        (
            [TrueBox((0, 0, 99, 99), "cat", is_crowd=True)],
            [box((0, 0, 10, 9), "cat"), box((5, 5, 9, 9), "dog")],
            [(None, "dog")],
        ),
        ([], [], []),
    ],
)
def test_boxes_are_paired_with_objects(
    truth: list[TrueBox], boxes: list[Box], pairs: list[tuple[str | None, str | None]]
) -> None:
    assert Counter(matched_boxes(truth, boxes)) == Counter(pairs)


def _some_boxes(generator: np.random.Generator, count: int) -> list[Corners]:
    places = generator.uniform(0, 60, (count, 2))
    sizes = generator.uniform(15, 30, (count, 2))
    return [(float(x), float(y), float(x + w), float(y + h)) for (x, y), (w, h) in zip(places, sizes, strict=True)]


def _coco_counts(truth: list[TrueBox], boxes: list[Box]) -> tuple[int, int, int]:
    """Return how many boxes of one class match, miss, and how many objects are missed, by pycocotools."""

    def fields(corners: Corners, number: int) -> dict[str, Any]:
        x1, y1, x2, y2 = corners
        sides = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
        return {"id": number, "image_id": 1, "category_id": 1, **sides}

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        objects = [
            {**fields(item.corners, index), "iscrowd": int(item.is_crowd)} for index, item in enumerate(truth, 1)
        ]
        coco.dataset = {"images": [{"id": 1}], "categories": [{"id": 1}], "annotations": objects}
        coco.createIndex()
        results = [{**fields(item.corners, 0), "score": item.score} for item in boxes]
        measured = COCOeval(coco, coco.loadRes(results), "bbox")
        measured.params.iouThrs = np.array([0.5])
        measured.params.areaRng, measured.params.areaRngLbl = [[0, 1e10]], ["all"]
        measured.evaluate()
    (image,) = measured.evalImgs
    is_counted = ~image["dtIgnore"][0].astype(bool)
    matched = int(((image["dtMatches"][0] > 0) & is_counted).sum())
    return matched, int(is_counted.sum()) - matched, sum(not item.is_crowd for item in truth) - matched


@pytest.mark.parametrize("seed", range(20))
def test_of_one_class_boxes_match_as_in_coco(seed: int) -> None:
    generator = np.random.default_rng(seed)
    objects = _some_boxes(generator, 12)
    truth = [TrueBox(corners, "cat", is_crowd=index == 0) for index, corners in enumerate(objects)]
    moved = [tuple(value + generator.normal(0, 2) for value in corners) for corners in objects[1:]]
    scores = generator.permutation(np.linspace(0.3, 0.9, 20))
    boxes = [
        Box((x1, y1, x2, y2), float(score), 0, "cat")
        for (x1, y1, x2, y2), score in zip([*moved, *_some_boxes(generator, 9)], scores, strict=True)
    ]
    pairs = Counter(matched_boxes(truth, boxes))
    assert pairs["cat", "cat"] > 3
    assert (pairs["cat", "cat"], pairs[None, "cat"], pairs["cat", None]) == _coco_counts(truth, boxes)
