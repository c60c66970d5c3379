"""Reads a network's outputs as answers about pictures, according to the config's `task`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import RequestError, SourceError
from trtkit.network.onnx.nms import CLASSES_KEY, NMS_OUTPUTS
from trtkit.runtime.tasks import boxes as box_layouts
from trtkit.runtime.tasks.answers import Box, Classes, ClassMap, DepthMap, DetectedBoxes, Embedding, Outputs, Text
from trtkit.runtime.tasks.classes import metadata_labels, scores_of, softmax, top_classes
from trtkit.runtime.tasks.maps import class_map, depth_map, text_boxes
from trtkit.sources.onnx_file import metadata_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtkit.arrays import Array, WidthHeight
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.records import IoRecord
    from trtkit.config.task import Task
    from trtkit.inputs.images import PicturePlacement
    from trtkit.runtime.tasks.answers import Answer


_RANKS = {"classification": (2,), "ctc-text": (3,), "segmentation": (4,), "depth": (3, 4), "embedding": (2,)}


@dataclass(frozen=True)
class Thresholds:
    """Thresholds on a detector's boxes that override its config; None keeps the config's.

    conf: the smallest score of a box. iou: overlap of two boxes of one class above which the lower-scoring one is
    suppressed.
    """

    conf: float | None = None
    iou: float | None = None


NO_THRESHOLDS = Thresholds()
"""The config's own thresholds."""


@dataclass(frozen=True)
class TaskReader:
    """Settings that turn outputs into answers. task: None to return outputs as they are.

    labels: class names, empty if there are none. characters: of the text, the blank first. top_k: classes shown.
    keypoints: per box of a pose.
    """

    task: Task | None
    labels: tuple[str, ...] = ()
    characters: tuple[str, ...] = ()
    top_k: int = 5
    keypoints: int = 0

    def read(self, outputs: Mapping[str, Array], placed: Sequence[PicturePlacement], size: WidthHeight) -> list[Answer]:
        """Return an answer for each row of a batch.

        placed: each picture's placement in its input. size: (width, height) of the input.
        """
        if self.task is None:
            return [
                Outputs({name: value[row : row + 1] for name, value in outputs.items()}) for row in range(len(placed))
            ]
        arrays = {name: _in_floats(value) for name, value in outputs.items()}
        if self.task.boxes is not None:
            detected = read_boxes(self.task, arrays, size)
            return [self._boxes(*pair) for pair in zip(detected, placed, strict=True)]
        first = next(iter(arrays.values()))
        return [
            self._answer(self.task.kind, value, placement, size) for value, placement in zip(first, placed, strict=True)
        ]

    def _answer(self, kind: str, value: Array, placed: PicturePlacement, size: WidthHeight) -> Answer:
        """Return the answer in one row of the first output."""
        match kind:
            case "classification":
                return self._classes(value)
            case "ctc-text":
                return Text(ctc_text(value[None], self.characters)[0], ctc_scores(value[None])[0])
            case "segmentation":
                return ClassMap(class_map(value, placed, size), self.labels)
            case "depth":
                return DepthMap(depth_map(value.reshape(value.shape[-2:]), placed, size))
            case _:
                return Embedding(value)

    def _classes(self, value: Array) -> Classes:
        value = value.reshape(-1)
        ids = tuple(top_classes(value[None], self.top_k)[0])
        scores = value if self.task is not None and self.task.scores == "probabilities" else softmax(value)
        return Classes(ids, tuple(float(scores[index]) for index in ids), self._names(ids))

    def _boxes(self, detections: box_layouts.Detections, placed: PicturePlacement) -> DetectedBoxes:
        corners = placed.on_picture(detections.boxes.reshape(-1, 2, 2)).reshape(-1, 4)
        points = detections.rest.reshape(len(corners), -1, 3) if self._is_pose else np.zeros((len(corners), 0, 3))
        on_picture = np.concatenate([placed.on_picture(points[..., :2]), points[..., 2:]], -1)
        ids = [int(index) for index in detections.classes]
        names = self._names(ids) or ("",) * len(ids)
        return DetectedBoxes(
            tuple(
                Box(_floats(box), float(score), number, name, tuple(_floats(point) for point in keypoints))
                for box, score, number, name, keypoints in zip(
                    corners, detections.scores, ids, names, on_picture, strict=True
                )
            )
        )

    @property
    def _is_pose(self) -> bool:
        return self.task is not None and self.task.kind == "pose"

    def _names(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return the names of classes. Raises SourceError for a class without a name."""
        if self.labels and (unknown := [index for index in ids if not 0 <= index < len(self.labels)]):
            what = f"the model answers class {unknown[0]}; `task.labels` names {len(self.labels)}"
            raise SourceError(what, "task.labels", "give the names of the model's own classes, and build again")
        return tuple(self.labels[index] for index in ids) if self.labels else ()


def read_boxes(task: Task, arrays: Mapping[str, Array], size: WidthHeight) -> list[box_layouts.Detections]:
    """Return each image's boxes in input pixels, for a task with `boxes`. size: (width, height) of the input."""
    options = task.boxes
    assert options is not None
    limits = box_layouts.BoxLimits(options.min_score, options.max_iou, options.max_boxes)
    if options.nms == "engine":
        selected = box_layouts.read_selected(*(arrays[name] for name in NMS_OUTPUTS))
        return [box_layouts.strongest(rows, limits) for rows in selected]
    if options.layout == "text-map":
        (maps,) = arrays.values()
        return [box_layouts.strongest(text_boxes(array[0], size), limits) for array in maps]
    if options.layout == "queries":
        assert options.scores is not None
        boxes, logits = sorted(arrays.values(), key=lambda array: array.shape[-1] != 4)
        read = box_layouts.read_queries(boxes, logits, options.scores, size)
        return [box_layouts.strongest(rows, limits) for rows in read]
    classes = 1 if task.kind == "pose" else None
    read = box_layouts.read_rows(next(iter(arrays.values())), options.layout, classes)
    finish = box_layouts.strongest if options.layout == "suppressed" else box_layouts.suppress
    return [finish(rows, limits) for rows in read]


def with_thresholds(task: Task | None, thresholds: Thresholds) -> Task | None:
    """Return a task with other box thresholds. Raises RequestError for thresholds that have no effect."""
    changes = {"min_score": thresholds.conf, "max_iou": thresholds.iou}
    changes = {key: value for key, value in changes.items() if value is not None}
    if not changes:
        return task
    for name, value in vars(thresholds).items():
        if value is not None and not 0 <= value <= 1:
            raise RequestError(f"{value} is not between 0 and 1", name, "such as 0.25")
    options = None if task is None else task.boxes
    if task is None or options is None:
        what = "thresholds are for detectors; the model's config has no `task.boxes`"
        raise RequestError(what, "conf" if thresholds.conf is not None else "iou", "leave it out")
    if thresholds.iou is not None and (options.layout not in _SUPPRESSED_ON_HOST or task.has_engine_nms):
        where = "runs in the engine" if task.has_engine_nms else f"does not run for the layout `{options.layout}`"
        fix = "build with `--set task.boxes.max_iou=...`" if task.has_engine_nms else "leave it out"
        raise RequestError(f"non-maximum suppression {where}", "iou", fix)
    if task.has_engine_nms and thresholds.conf is not None and thresholds.conf < options.min_score:
        what = f"the engine leaves out boxes that score below {options.min_score}; {thresholds.conf} is lower"
        raise RequestError(what, "conf", f"build with `--set task.boxes.min_score={thresholds.conf}`")
    return task.model_copy(update={"boxes": options.model_copy(update=changes)})


_SUPPRESSED_ON_HOST = {"channels-first", "anchors"}


def open_reader(bundle: Bundle, top_k: int = 5, thresholds: Thresholds = NO_THRESHOLDS) -> TaskReader:
    """Return the reader of the bundle's outputs.

    Raises SourceError if they do not fit the config's task, RequestError for thresholds that do not apply.
    """
    config, outputs = bundle.manifest.config, bundle.manifest.outputs
    task = with_thresholds(config.task, thresholds)
    if task is None:
        return TaskReader(None)
    _check_outputs(task, outputs)
    if task.kind == "classification" and task.scores is None:
        scores = scores_of(bundle.onnx_path()) if bundle.is_one_file else "logits"
        task = task.model_copy(update={"scores": scores})
    if task.kind in {"segmentation", "depth"} and config.preprocess is not None and config.preprocess.crop is not None:
        what = "`preprocess.crop` cuts off what the map would have to cover"
        raise SourceError(what, bundle.manifest.name, "use `resize: {exact: ...}` or `resize: {letterbox: ...}`")
    if task.kind == "ctc-text":
        return TaskReader(task, characters=tuple(ctc_characters(bundle.onnx_path())))
    if task.labels is not None and not bundle.manifest.labels:
        what = "the bundle was built by a trtkit that did not keep the names of `task.labels` in it"
        raise SourceError(what, str(bundle.path), "build it again")
    labels = bundle.manifest.labels or _own_labels(task, bundle)
    classes = class_count(task, outputs)
    if labels and task.has_engine_nms:
        classes = int(metadata_value(bundle.onnx_path(), CLASSES_KEY) or 0)
    if labels and classes and len(labels) != classes:
        what = f"`task.labels` names {len(labels)} classes; the outputs have {classes}"
        fix = "give the names of the model's own classes, and build again"
        raise SourceError(what, task.labels or str(bundle.path), fix)
    return TaskReader(task, labels, top_k=top_k, keypoints=_keypoints(task, outputs))


def _own_labels(task: Task, bundle: Bundle) -> tuple[str, ...]:
    """Return the class names in the model's own ONNX file."""
    if task.kind not in {"classification", "detection", "segmentation"}:
        return ()
    if task.boxes is not None and task.boxes.layout == "text-map":
        return ("text",)
    return metadata_labels(bundle.onnx_path()) if bundle.is_one_file else ()


def _check_outputs(task: Task, outputs: Sequence[IoRecord]) -> None:
    """Raise SourceError for outputs that do not fit the task."""
    if task.has_engine_nms and [output.name for output in outputs] == list(NMS_OUTPUTS):
        return
    shapes = ", ".join(f"`{output.name}` {list(output.shape)}" for output in outputs)
    if task.has_engine_nms or not _fits(task, outputs):
        layout = "" if task.boxes is None else f" in the layout `{task.boxes.layout}`"
        what = f"outputs {shapes} are not those of a {task.kind} task{layout}"
        raise SourceError(what, "task", "see `task` in docs/config.md for the shapes of each kind")


def _fits(task: Task, outputs: Sequence[IoRecord]) -> bool:
    shapes = [output.shape for output in outputs]
    if task.boxes is None:
        ranks = _RANKS[task.kind]
        is_depth_map = task.kind != "depth" or len(shapes[0]) == 3 or shapes[0][1] in {1, -1}
        has_axes_of_one = task.kind == "classification" and len(shapes[0]) == 4 and shapes[0][2:] == (1, 1)
        return (len(shapes[0]) in ranks and is_depth_map) or has_axes_of_one
    is_map = task.boxes.layout == "text-map"
    if any(len(shape) != (4 if is_map else 3) for shape in shapes):
        return False
    if is_map:
        return len(shapes) == 1 and shapes[0][1] in {1, -1}
    return _rows_fit(task, shapes)


def _rows_fit(task: Task, shapes: Sequence[tuple[int, ...]]) -> bool:
    assert task.boxes is not None
    if task.boxes.layout == "queries":
        return len(shapes) == 2 and sum(shape[2] == 4 for shape in shapes) == 1
    row = shapes[0][1] if task.boxes.layout == "channels-first" else shapes[0][2]
    if row == -1:
        return task.kind != "pose"  # how many keypoints there are must be known
    if task.kind == "pose":
        first = 5 if task.boxes.layout == "channels-first" else 6
        return row > first and (row - first) % 3 == 0
    return row == 6 if task.boxes.layout == "suppressed" else row > (4 if task.boxes.layout == "channels-first" else 5)


def class_count(task: Task, outputs: Sequence[IoRecord]) -> int:
    """Return the number of classes in the outputs, 0 if the shapes do not determine it."""
    first = outputs[0].shape
    if task.kind in {"classification", "segmentation"} or (task.boxes and task.boxes.layout == "text-map"):
        count = first[1]
    elif task.boxes is None or task.boxes.layout == "suppressed" or task.has_engine_nms or task.kind == "pose":
        return 0
    elif task.boxes.layout == "queries":
        logits = next(output.shape for output in outputs if output.shape[2] != 4)
        count = logits[2] - (task.boxes.scores == "softmax") if logits[2] > 0 else 0
    else:
        count = first[1] - 4 if task.boxes.layout == "channels-first" else first[2] - 5
    return max(0, count)


def _keypoints(task: Task, outputs: Sequence[IoRecord]) -> int:
    """Return the number of keypoints of a pose, 0 if the shapes do not determine it."""
    if task.kind != "pose" or task.boxes is None:
        return 0
    is_first, shape = task.boxes.layout == "channels-first", outputs[0].shape
    return max(0, (shape[1] - 5 if is_first else shape[2] - 6) // 3)


def _in_floats(value: Array) -> Array:
    """Return 16-bit floats as fp32, since NumPy has no bf16."""
    return value.astype(np.float32) if value.dtype.kind not in "iub" else value


def _floats(values: Array) -> Any:
    return tuple(float(value) for value in values)


def ctc_text(probabilities: Array, characters: Sequence[str]) -> list[str]:
    """Decode [N, steps, characters] greedily: repeats merge, index 0 is the blank (Graves et al., 2006)."""
    best = probabilities.argmax(axis=-1)
    texts = []
    for row in best:
        kept = [int(now) for before, now in zip([0, *row], row, strict=False) if now and now != before]
        texts.append("".join(characters[index] for index in kept))
    return texts


def ctc_scores(probabilities: Array) -> list[float]:
    """Return, per item of [N, steps, characters], the mean of the best probabilities of its non-blank steps."""
    best, is_text = probabilities.max(axis=-1), probabilities.argmax(axis=-1) != 0
    return [float(row[mask].mean()) if mask.any() else 0.0 for row, mask in zip(best, is_text, strict=True)]


def ctc_characters(path: Path) -> list[str]:
    """Return the alphabet of a PaddleOCR recognizer: blank, the `character` list of its metadata, space."""
    characters = metadata_value(path, "character")
    if characters is None:
        raise SourceError("the model's metadata has no `character` list", str(path), "remove `task:` from the config")
    return ["", *characters.splitlines(), " "]
