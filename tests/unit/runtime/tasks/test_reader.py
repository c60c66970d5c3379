"""Answers on the picture: corners, keypoints, labels, and outputs that are not those of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from scipy.special import softmax

from trtkit.bundle.records import IoRecord
from trtkit.config.task import Preprocess, Resize, Task
from trtkit.errors import SourceError
from trtkit.inputs.images import placement
from trtkit.runtime.tasks.answers import Classes, DetectedBoxes
from trtkit.runtime.tasks.classes import scores_of
from trtkit.runtime.tasks.reader import TaskReader, _check_outputs

if TYPE_CHECKING:
    from pathlib import Path

YOLO = {"layout": "channels-first", "min_score": 0.3}
LETTERBOX = Preprocess(resize=Resize(letterbox=(64, 64)))


def task(kind: str, **keys: Any) -> Task:
    return Task.model_validate({"kind": kind, **keys})


def boxes_of(reader: TaskReader, output: Any, size: tuple[int, int] = (100, 50)) -> DetectedBoxes:
    (answer,) = reader.read({"y": output}, [placement(size, LETTERBOX)], (64, 64))
    assert isinstance(answer, DetectedBoxes)
    return answer


def test_boxes_lie_on_the_picture_and_not_beyond_it() -> None:
    """100 x 50 in 64 x 64: scaled by 0.64, 16 rows of bars above."""
    rows = np.zeros((1, 6, 50), np.float32)
    rows[0, :, 0] = [32, 32, 32, 16, 0.9, 0.1]  # the middle of the picture, half as wide and as high
    rows[0, :, 1] = [60, 44, 20, 20, 0.1, 0.8]  # over the corner
    answer = boxes_of(TaskReader(task("detection", boxes=YOLO), ("cat", "dog")), rows)
    assert [(box.label, box.class_id) for box in answer.boxes] == [("cat", 0), ("dog", 1)]
    assert answer.boxes[0].corners == pytest.approx((25, 12.5, 75, 37.5))
    assert answer.boxes[1].corners == pytest.approx((78.125, 28.125, 100, 50))
    assert answer.to_json()["boxes"][1] == {
        "class_id": 1,
        "label": "dog",
        "score": 0.8,
        "box": [78.125, 28.125, 100, 50],
    }


def test_keypoints_lie_on_the_picture() -> None:
    rows = np.zeros((1, 5 + 6, 60), np.float32)
    rows[0, :, 7] = [32, 32, 32, 16, 0.9, 32, 32, 0.7, 0, 16, 0.2]
    answer = boxes_of(TaskReader(task("pose", boxes=YOLO)), rows)
    assert [len(box.keypoints) for box in answer.boxes] == [2]
    assert answer.boxes[0].keypoints[0] == pytest.approx((50, 25, 0.7))
    assert answer.boxes[0].keypoints[1] == pytest.approx((0, 0, 0.2))


def test_what_was_suppressed_by_the_network_is_taken_as_it_is() -> None:
    rows = np.zeros((1, 10, 6), np.float32)
    rows[0, 0], rows[0, 1] = [0, 16, 64, 48, 0.9, 1], [0, 17, 64, 48, 0.8, 1]
    answer = boxes_of(TaskReader(task("detection", boxes={"layout": "suppressed"})), rows)
    assert [box.score for box in answer.boxes] == pytest.approx([0.9, 0.8])
    assert answer.boxes[0].corners == pytest.approx((0, 0, 100, 50))


def test_a_map_of_text_gives_boxes_that_reach_beyond_the_cores_of_lines() -> None:
    """100 x 50 in 64 x 64: scaled by 0.64, 16 rows of bars above; the map has half of the input's resolution."""
    probability = np.zeros((1, 1, 32, 32), np.float32)
    probability[0, 0, 12:16, 10:20] = 0.8
    probability[0, 0, 18:22, 10:20] = 0.4  # text, but not enough of it
    answer = boxes_of(
        TaskReader(task("detection", boxes={"layout": "text-map", "min_score": 0.5}), ("text",)), probability
    )
    assert str(answer) == "1 box: text 0.80"
    assert answer.boxes[0].corners == pytest.approx((16 / 0.64, 4 / 0.64, 44 / 0.64, 20 / 0.64))


def test_a_class_without_a_name_is_an_error() -> None:
    rows = np.array([[[0, 16, 64, 48, 0.9, 2]]], np.float32)
    with pytest.raises(SourceError, match=r"answers class 2; `task\.labels` names 2"):
        boxes_of(TaskReader(task("detection", boxes={"layout": "suppressed"}), ("a", "b")), rows)


def outputs(*shapes: tuple[int, ...]) -> list[IoRecord]:
    return [IoRecord(name=f"y{index}", dtype="fp32", shape=shape) for index, shape in enumerate(shapes)]


QUERIES = {"layout": "queries", "scores": "sigmoid"}
POSE = {"layout": "channels-first"}


@pytest.mark.parametrize(
    ("what", "shapes"),
    [
        (task("classification"), [(-1, 10)]),
        (task("classification"), [(-1, -1)]),
        (task("classification"), [(-1, 10, 1, 1)]),
        (task("detection", boxes=YOLO), [(-1, 84, 8400)]),
        (task("detection", boxes=YOLO), [(1, 84, -1)]),
        (task("detection", boxes={"layout": "anchors"}), [(1, 25200, 85)]),
        (task("detection", boxes={"layout": "suppressed"}), [(1, 300, 6)]),
        (task("detection", boxes=QUERIES), [(-1, 300, 80), (-1, 300, 4)]),
        (task("detection", boxes={"layout": "text-map"}), [(-1, 1, -1, -1)]),
        (task("pose", boxes=POSE), [(1, 56, 8400)]),
        (task("depth"), [(-1, 1, 64, 64)]),
        (task("depth"), [(-1, 64, 64)]),
        (task("embedding"), [(-1, 512)]),
    ],
)
def test_outputs_that_fit_the_task(what: Task, shapes: list[tuple[int, ...]]) -> None:
    _check_outputs(what, outputs(*shapes))


@pytest.mark.parametrize(
    ("what", "shapes"),
    [
        (task("classification"), [(-1, 10, 7)]),
        (task("classification"), [(-1, 10, 7, 7)]),
        (task("detection", boxes=YOLO), [(-1, 10)]),
        (task("detection", boxes=YOLO), [(1, 4, 8400)]),
        (task("detection", boxes={"layout": "suppressed"}), [(1, 300, 7)]),
        (task("detection", boxes=QUERIES), [(-1, 300, 80)]),
        (task("detection", boxes=QUERIES), [(-1, 300, 4), (-1, 300, 4)]),
        (task("detection", boxes={"layout": "text-map"}), [(-1, 2, -1, -1)]),
        (task("pose", boxes=POSE), [(1, 57, 8400)]),
        (task("segmentation"), [(-1, 64, 64)]),
        (task("depth"), [(-1, 3, 64, 64)]),
        (task("embedding"), [(-1, 197, 512)]),
    ],
)
def test_outputs_that_do_not_are_refused(what: Task, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(SourceError, match=rf"are not those of a {what.kind} task"):
        _check_outputs(what, outputs(*shapes))


LOGITS = np.array([[1.0, 3.0, 2.0, -4.0]], np.float32)


def classes_of(scores: str | None, output: Any) -> Classes:
    reader = TaskReader(task("classification", scores=scores))
    (answer,) = reader.read({"y": output}, [placement((100, 50), LETTERBOX)], (64, 64))
    assert isinstance(answer, Classes)
    return answer


@pytest.mark.parametrize("shape", [(1, 4), (1, 4, 1, 1)])
def test_probabilities_are_taken_as_they_are_and_logits_by_their_softmax(shape: tuple[int, ...]) -> None:
    expected = softmax(LOGITS[0].astype(np.float64))[[1, 2, 0, 3]]
    for scores, output in ((None, LOGITS), ("logits", LOGITS), ("probabilities", softmax(LOGITS))):
        answer = classes_of(scores, output.reshape(shape))
        assert answer.ids == (1, 2, 0, 3)
        np.testing.assert_allclose(answer.scores, expected, rtol=1e-6)


def graph(path: Path, *nodes: tuple[str, dict[str, Any]], is_quantized: bool = False) -> Path:
    """Save nodes of one input in a row, the last of which gives the output."""
    names = [f"t{index}" for index in range(len(nodes) + 1)]
    more = ["scale", "zero"] if is_quantized else []
    row = [
        helper.make_node(op, [before, *(more if "Linear" in op else [])], [after], **keys)
        for (op, keys), before, after in zip(nodes, names[:-1], names[1:], strict=True)
    ]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (names[0], names[-1])]
    made = helper.make_graph(row, "g", value[:1], value[1:])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 12)]), path)
    return path


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([("Softmax", {"axis": 1})], "probabilities"),
        ([("Sigmoid", {})], "probabilities"),
        ([("Softmax", {"axis": 1}), ("Flatten", {})], "probabilities"),
        ([("Softmax", {"axis": 1}), ("Cast", {"to": 1}), ("Identity", {}), ("Squeeze", {})], "probabilities"),
        ([("Softmax", {}), ("QuantizeLinear", {}), ("DequantizeLinear", {})], "probabilities"),
        ([("Relu", {})], "logits"),
        ([("Softmax", {"axis": 1}), ("Relu", {})], "logits"),  # attention, or anything else in the middle
        ([("LogSoftmax", {"axis": 1})], "logits"),  # its softmax is the probabilities
        ([("Identity", {})], "logits"),
    ],
)
def test_the_last_node_decides_what_scores_are(tmp_path: Path, nodes: list[Any], expected: str) -> None:
    path = graph(tmp_path / "a.onnx", *nodes, is_quantized=True)
    assert scores_of(path) == expected


def test_scores_are_of_classifications_only() -> None:
    with pytest.raises(ValueError, match="`scores` applies to the kind `classification` only"):
        task("embedding", scores="logits")
