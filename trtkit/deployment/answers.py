"""A vision model's answers as the tensors that clients receive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.config.task import Task
from trtkit.errors import SourceError
from trtkit.inputs.images import PicturePlacement
from trtkit.runtime.tasks.answers import Classes, ClassMap, DepthMap, DetectedBoxes, Embedding, Text
from trtkit.runtime.tasks.reader import TaskReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.arrays import Array, Arrays, WidthHeight
    from trtkit.runtime.tasks.answers import Answer, Box

MAP_TENSORS = {"segmentation": ("class_id", "int32"), "depth": ("depth", "fp32")}
"""Name and type of the answer tensor of tasks that have one answer per pixel."""
PLACEMENT = "placement"
"""Tensor passed from preprocessing to the reading of boxes and maps: a row of eight numbers per picture."""


def reader_settings(reader: TaskReader) -> dict[str, Any]:
    """Return a reader's settings as stored in a version's settings.json."""
    assert reader.task is not None
    task = reader.task.model_dump(mode="json")
    return {
        "task": task,
        "labels": reader.labels,
        "characters": reader.characters,
        "top_k": reader.top_k,
        "keypoints": reader.keypoints,
    }


def reader_from(settings: Mapping[str, Any]) -> TaskReader:
    """Return the reader that `reader_settings` described."""
    task = Task.model_validate(settings["task"])
    return TaskReader(
        task, tuple(settings["labels"]), tuple(settings["characters"]), settings["top_k"], settings["keypoints"]
    )


def is_placed(task: Task | None) -> bool:
    """Whether answers lie on the picture, so that their reader must know its placement in the input."""
    return task is not None and (task.boxes is not None or task.kind in MAP_TENSORS)


def placement_row(placed: PicturePlacement, size: WidthHeight) -> list[float]:
    """Return a placement as numbers: picture size, scale, offset, and the (width, height) of the input."""
    return [*placed.size, *placed.scale, *placed.offset, *size]


def answer_tensors(reader: TaskReader, outputs: Arrays, placements: Array | None = None) -> Arrays:
    """Return the answer tensors of outputs [N, ...].

    placements: [N, 8], as from `placement_row`, if `is_placed`.
    """
    count = len(next(iter(outputs.values())))
    rows = np.tile([1, 1, 1, 1, 0, 0, 1, 1], (count, 1)) if placements is None else placements
    placed = [PicturePlacement((int(row[0]), int(row[1])), (row[2], row[3]), (row[4], row[5])) for row in rows.tolist()]
    size = (int(rows[0, 6]), int(rows[0, 7])) if len(rows) else (1, 1)
    return _tensors(reader, reader.read(outputs, placed, size))


def _tensors(reader: TaskReader, answers: Sequence[Answer]) -> Arrays:
    assert reader.task is not None
    if reader.task.boxes is not None:
        return _boxes(reader, [answer.boxes for answer in answers if isinstance(answer, DetectedBoxes)])
    if reader.task.kind in MAP_TENSORS:
        return {MAP_TENSORS[reader.task.kind][0]: _one_size([_map(answer) for answer in answers])}
    if reader.task.kind == "embedding":
        vectors = [answer.vector for answer in answers if isinstance(answer, Embedding)]
        return {"embedding": np.asarray(vectors, dtype=np.float32)}
    texts = [answer for answer in answers if isinstance(answer, Text)]
    if texts:
        return {
            "text": np.array([[answer.text.encode()] for answer in texts], dtype=np.object_),
            "score": np.array([[answer.score] for answer in texts], dtype=np.float32),
        }
    classes = [answer for answer in answers if isinstance(answer, Classes)]
    tensors: Arrays = {
        "class_id": np.array([answer.ids for answer in classes], dtype=np.int32),
        "score": np.array([answer.scores for answer in classes], dtype=np.float32),
    }
    if reader.labels:
        labels = [[label.encode() for label in answer.labels] for answer in classes]
        tensors["label"] = np.array(labels, dtype=np.object_)
    return tensors


def _map(answer: Answer) -> Array:
    assert isinstance(answer, (ClassMap, DepthMap))
    return answer.ids if isinstance(answer, ClassMap) else answer.values.astype(np.float32)


def _one_size(maps: Sequence[Array]) -> Array:
    """Stack maps into one array. Raises SourceError for pictures of different sizes."""
    sizes = sorted({array.shape for array in maps})
    if len(sizes) > 1:
        listed = ", ".join(f"{height}x{width}" for height, width in sizes)
        raise SourceError(
            f"maps of one request have the sizes of its images: {listed}", "image", "send one per request"
        )
    return np.stack(maps)


def _boxes(reader: TaskReader, pictures: Sequence[tuple[Box, ...]]) -> Arrays:
    """Return boxes [N, M, ...], padded to the maximum number; padding has class_id -1 and score 0."""
    assert reader.task is not None
    assert reader.task.boxes is not None
    count, most = len(pictures), reader.task.boxes.max_boxes
    tensors: Arrays = {
        "num_boxes": np.array([[len(boxes)] for boxes in pictures], dtype=np.int32),
        "box": np.zeros((count, most, 4), np.float32),
        "score": np.zeros((count, most), np.float32),
        "class_id": np.full((count, most), -1, np.int32),
    }
    if reader.labels:
        tensors["label"] = np.full((count, most), b"", np.object_)
    for picture, boxes in enumerate(pictures):
        for row, box in enumerate(boxes):
            tensors["box"][picture, row], tensors["score"][picture, row] = box.corners, box.score
            tensors["class_id"][picture, row] = box.class_id
            if reader.labels:
                tensors["label"][picture, row] = box.label.encode()
    if reader.keypoints:
        tensors["keypoints"] = np.zeros((count, most, reader.keypoints, 3), np.float32)
        for picture, boxes in enumerate(pictures):
            for row, box in enumerate(boxes):
                tensors["keypoints"][picture, row] = box.keypoints
    return tensors
