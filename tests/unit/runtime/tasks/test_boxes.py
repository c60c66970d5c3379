"""Boxes against ONNX Runtime's NonMaxSuppression and transformers' own readers of DETR and RT-DETR."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import helper
from transformers import DetrImageProcessorPil, RTDetrImageProcessorPil

from tests.support import models
from trtkit.runtime.tasks.boxes import BoxLimits, Detections, read_queries, read_rows, strongest, suppress

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.runtime.tasks.boxes import Layout

LIMITS = BoxLimits(min_score=0.3, max_iou=0.4, max_boxes=1000)


def rows(count: int = 400, classes: int = 5, seed: int = 0) -> Array:
    """Rows [1, A, 4+C] of overlapping boxes in pixels and class probabilities, some of them equal."""
    random = np.random.default_rng(seed)
    places = np.concatenate([random.uniform(50, 250, (1, count, 2)), random.uniform(20, 120, (1, count, 2))], -1)
    return np.concatenate([places, random.integers(0, 100, (1, count, classes)) / 100], -1).astype(np.float32)


def by_onnx_runtime(boxes: Array, scores: Array, limits: BoxLimits) -> set[int]:
    """Return the anchors that NonMaxSuppression keeps, if each has its best class alone."""
    alone = np.where(scores == scores.max(-1, keepdims=True), scores, 0)
    limit = [models.constant("max", [limits.max_boxes], "int64")]
    limit += [models.constant("iou", [limits.max_iou]), models.constant("score", [limits.min_score])]
    node = helper.make_node("NonMaxSuppression", ["b", "s", "max", "iou", "score"], ["kept"], center_point_box=1)
    inputs = [models.tensor("b", 1, "a", 4), models.tensor("s", 1, "c", "a")]
    model = models.model([node], inputs, [models.tensor("kept", "k", 3, dtype="INT64")], limit)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (kept,) = session.run(None, {"b": boxes[None], "s": alone.T[None].astype(np.float32)})
    return {int(anchor) for _, _, anchor in kept}


def unlike(scores: Array) -> Array:
    """Return scores of which no two are equal, so that one order is right."""
    return scores + np.linspace(0, 0.009, scores.size, dtype=np.float32).reshape(scores.shape)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("layout", ["channels-first", "anchors"])
def test_suppression_keeps_what_onnx_runtime_keeps(layout: Layout, seed: int) -> None:
    one = rows(seed=seed)
    one[..., 4:] = unlike(one[..., 4:])
    scores = one[0, :, 4:]
    output = one.transpose(0, 2, 1)
    if layout == "anchors":
        objectness = np.random.default_rng(seed).uniform(0.5, 1, (1, len(scores), 1)).astype(np.float32)
        output = np.concatenate([one[..., :4], objectness, one[..., 4:]], -1)
        scores = scores * objectness[0]
    (read,) = read_rows(output, layout)
    kept = suppress(read, LIMITS)
    theirs = by_onnx_runtime(one[0, :, :4], scores, LIMITS)
    ours = {int(np.flatnonzero((read.boxes == box).all(-1))[0]) for box in kept.boxes}
    assert ours == theirs
    assert len(kept.scores) == len(theirs) > 20
    assert (np.diff(kept.scores) <= 0).all()


def test_the_most_boxes_are_the_surest() -> None:
    (read,) = read_rows(rows().transpose(0, 2, 1), "channels-first")
    every, some = suppress(read, LIMITS), suppress(read, BoxLimits(0.3, 0.4, 7))
    assert len(every.scores) > 7
    assert np.array_equal(some.boxes, every.boxes[:7])


def test_no_box_is_no_error() -> None:
    (read,) = read_rows(rows(count=0).transpose(0, 2, 1), "channels-first")
    assert suppress(read, LIMITS).boxes.shape == (0, 4)
    assert strongest(read, LIMITS).boxes.shape == (0, 4)


def of_queries(seed: int) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    return random.uniform(0.2, 0.6, (2, 30, 4)).astype(np.float32), random.normal(0, 3, (2, 30, 8)).astype(np.float32)


def check(ours: list[Detections], theirs: list[dict[str, torch.Tensor]]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        order = np.argsort(-other["scores"].numpy(), kind="stable")
        assert len(order) > 3
        assert np.allclose(mine.scores, other["scores"].numpy()[order], atol=1e-6)
        assert np.array_equal(mine.classes, other["labels"].numpy()[order])
        assert np.allclose(mine.boxes, other["boxes"].numpy()[order], atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_queries_with_a_softmax_are_those_of_transformers_detr(seed: int) -> None:
    boxes, logits = of_queries(seed)
    limits = BoxLimits(0.4, 1.0, 100)
    ours = [strongest(each, limits) for each in read_queries(boxes, logits, "softmax", (640, 480))]
    outputs = SimpleNamespace(logits=torch.from_numpy(logits), pred_boxes=torch.from_numpy(boxes))
    sizes = [(480, 640)] * 2
    check(ours, DetrImageProcessorPil().post_process_object_detection(outputs, limits.min_score, sizes))


@pytest.mark.parametrize("seed", range(3))
def test_queries_with_sigmoids_are_those_of_transformers_rt_detr(seed: int) -> None:
    boxes, logits = of_queries(seed)
    limits = BoxLimits(0.9, 1.0, 30)
    ours = [strongest(each, limits) for each in read_queries(boxes, logits, "sigmoid", (640, 480))]
    outputs = SimpleNamespace(logits=torch.from_numpy(logits), pred_boxes=torch.from_numpy(boxes))
    sizes = [(480, 640)] * 2
    check(ours, RTDetrImageProcessorPil().post_process_object_detection(outputs, limits.min_score, sizes))
