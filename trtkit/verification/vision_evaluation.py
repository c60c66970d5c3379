"""Evaluation of vision models on labelled pictures.

Top-1 and top-5, COCO's mean average precision, character accuracy.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NotRequired, TypedDict

from trtkit.bundle.bundle import open_bundle
from trtkit.errors import SourceError
from trtkit.files import write_output
from trtkit.inputs.images import read_image
from trtkit.inputs.samples import IMAGES
from trtkit.jobs.events import Phase, Progress
from trtkit.pages import HasPage
from trtkit.runtime.model import open_model
from trtkit.runtime.predict import PredictOptions, Predictor, open_predictor
from trtkit.runtime.saved_answers import COCO as COCO_FILE
from trtkit.runtime.saved_answers import check_predictions
from trtkit.runtime.tasks.answers import Classes, DetectedBoxes, Text
from trtkit.runtime.tasks.reader import Thresholds, class_count, with_thresholds
from trtkit.verification.confusion import TrueBox, confusion_of, matched_boxes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pycocotools.coco import COCO

    from trtkit.bundle.bundle import Bundle
    from trtkit.config.task import Task
    from trtkit.jobs.runner import Runner
    from trtkit.runtime.model import RuntimeName
    from trtkit.runtime.tasks.answers import Answer, Box
    from trtkit.verification.confusion import Confusion

# COCO's metric needs boxes of every score, as its precision covers all recalls. Ultralytics validates the same way.
_LEAST_SCORE = 0.001
_TOP = (1, 5)


@dataclass(frozen=True)
class VisionRequest:
    """What to evaluate on. images: a folder. truth: its labels; None for a folder with one folder per class.

    truth is a CSV file with a header, `file,class` or `file,text`, or COCO's annotations in JSON. batch: pictures per
    call; None for the size that the engine was tuned for. predictions: a file for the model's answers: JSON lines, or
    COCO's results of a detector. conf: the smallest score of a box in the confusion matrix and in JSON lines; None for
    the config's.
    """

    images: Path
    truth: Path | None = None
    batch: int | None = None
    runtime: RuntimeName = "auto"
    predictions: Path | None = None
    conf: float | None = None


@dataclass(frozen=True)
class VisionEvaluation(HasPage):
    """The results. measures: by name, as fractions of 1. task: the config's kind. runtime: what ran the model.

    note: a remark on the measures, if any. confusion: of classes; None for text.
    """

    name: str
    task: str
    images: int
    measures: Mapping[str, float]
    seconds: float
    runtime: str
    note: str = ""
    confusion: Confusion | None = None

    def to_json(self) -> dict[str, object]:
        """Return JSON data, as `trtkit eval --json` prints it."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the figures, one per line."""
        return "\n".join(
            [
                f"runtime: {self.runtime}",
                *(f"{name}: {value:.2%}" for name, value in self.measures.items()),
                *([f"note: {self.note}"] if self.note else []),
            ]
        )


def evaluate_vision(bundle: Bundle | Path | str, request: VisionRequest, runner: Runner) -> VisionEvaluation:
    """Measure a bundle whose config has a `task` of classes, boxes or text.

    Raises SourceError for pictures and labels that do not fit the task.
    """
    opened = open_bundle(bundle)
    task, name = opened.manifest.config.task, opened.manifest.name
    if not request.images.is_dir():
        raise SourceError("no such folder", str(request.images), "give a folder of pictures")
    if opened.manifest.interface == "tokens":
        raise SourceError("pictures are for vision models; this is a language model", name, "use --perplexity FILE")
    if task is None or task.kind not in _MEASURES:
        what = "the config has no `task:`" if task is None else f"tasks of kind `{task.kind}` cannot be evaluated"
        raise SourceError(what, name, f"supported kinds: {', '.join(_MEASURES)}")
    if request.predictions is not None:
        check_predictions(request.predictions, has_boxes=task.boxes is not None)
    with_thresholds(task, Thresholds(request.conf))  # refuses what would change nothing
    runner.report(Phase("load"))
    model = open_model(opened, request.runtime)
    predictor = open_predictor(model.bundle, model.run, PredictOptions(request.batch))
    started = time.monotonic()
    measured = _MEASURES[task.kind](predictor, request, runner)
    seconds = round(time.monotonic() - started, 3)
    if request.predictions is not None:
        write_output(request.predictions, _predictions_text(measured.predictions, request.predictions))
    return VisionEvaluation(
        name,
        task.kind,
        measured.images,
        measured.measures,
        seconds,
        model.description,
        _note(task),
        measured.confusion,
    )


def _note(task: Task) -> str:
    """Return a remark on which boxes are missing if the engine selects them itself."""
    if task.boxes is None or not task.has_engine_nms or task.boxes.min_score <= _LEAST_SCORE:
        return ""
    fix = f"build with `task.boxes.min_score` {_LEAST_SCORE} for COCO's own measure"
    return f"NMS in the engine left out boxes with a score below {task.boxes.min_score}; {fix}"


@dataclass(frozen=True)
class _Measured:
    """Measures by name, with each picture's truth and answer. predictions: a line, or a box, each."""

    images: int
    measures: dict[str, float]
    predictions: list[dict[str, object]]
    confusion: Confusion | None = None


def _predictions_text(predictions: Sequence[Mapping[str, object]], path: Path) -> str:
    """Return JSON lines, or COCO's list of results, depending on the file's suffix."""
    if path.suffix.lower() == COCO_FILE:
        return json.dumps(predictions)
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in predictions)


def _classes(predictor: Predictor, request: VisionRequest, runner: Runner) -> _Measured:
    """Return top-1 accuracy, and top-5 unless the model is known to have at most five classes."""
    named = _class_folders(request.images) if request.truth is None else _table(request, "class")
    wanted = _numbers(named, predictor.reader.labels, str(request.truth or request.images))
    labels, ranks = predictor.reader.labels, []
    pairs: list[tuple[str | None, str | None]] = []
    lines: list[dict[str, object]] = []
    for (file, number), answer in zip(wanted, _answers(predictor, [file for file, _ in wanted], runner), strict=True):
        assert isinstance(answer, Classes)
        ranks.append(answer.ids.index(number) if number in answer.ids else len(answer.ids))
        truth, predicted = (labels[index] if labels else str(index) for index in (number, answer.ids[0]))
        pairs.append((truth, predicted))
        lines.append({"input": _name(file, request.images), "truth": truth, **answer.to_json()})
    task = predictor.reader.task
    assert task is not None
    classes = class_count(task, predictor.bundle.manifest.outputs)
    counts = (1,) if 0 < classes <= max(_TOP) else _TOP
    shares = {f"top-{most}": sum(rank < most for rank in ranks) / len(ranks) for most in counts}
    return _Measured(len(ranks), shares, lines, confusion_of(pairs))


def _texts(predictor: Predictor, request: VisionRequest, runner: Runner) -> _Measured:
    """Return the share of correct texts, and of characters: 1 minus the edits per character of the truth."""
    from rapidfuzz.distance import Levenshtein

    if request.truth is None:
        raise SourceError(
            "text recognition needs the expected texts", "--truth", "give a CSV file with the header `file,text`"
        )
    wanted = _table(request, "text")
    right = edits = 0
    lines: list[dict[str, object]] = []
    for (file, text), answer in zip(wanted, _answers(predictor, [file for file, _ in wanted], runner), strict=True):
        assert isinstance(answer, Text)
        right += answer.text == text
        edits += Levenshtein.distance(answer.text, text)
        lines.append({"input": _name(file, request.images), "truth": text, **answer.to_json()})
    characters = max(1, sum(len(text) for _, text in wanted))
    return _Measured(len(wanted), {"texts": right / len(wanted), "characters": 1 - edits / characters}, lines)


def _boxes(predictor: Predictor, request: VisionRequest, runner: Runner) -> _Measured:
    """Return COCO's average precision over IoUs of 0.5 to 0.95, at 0.5 and at 0.75, by pycocotools.

    The confusion matrix counts boxes with at least `request.conf`, or the config's `min_score`.
    """
    from pycocotools.coco import COCO

    if request.truth is None:
        raise SourceError("detection needs the expected boxes", "--truth", "give a JSON file of COCO annotations")
    annotations = _annotations(request.truth)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = annotations
        coco.createIndex()
    categories = _categories(coco.loadCats(coco.getCatIds()), predictor.reader.labels, str(request.truth))
    images = [(int(key), request.images / str(coco.imgs[key]["file_name"])) for key in sorted(coco.getImgIds())]
    task = predictor.reader.task
    assert task is not None
    assert task.boxes is not None
    classes = {category: index for index, category in categories.items()}
    labels, least = predictor.reader.labels, task.boxes.min_score if request.conf is None else request.conf
    results: list[dict[str, object]] = []
    lines: list[dict[str, object]] = []
    pairs: list[tuple[str | None, str | None]] = []
    answers = _answers(_all_scores(predictor), [file for _, file in images], runner)
    for (image, file), answer in zip(images, answers, strict=True):
        assert isinstance(answer, DetectedBoxes)
        known = [box for box in answer.boxes if box.class_id in categories]
        results += [_result(image, categories[box.class_id], box) for box in known]
        sure = DetectedBoxes(tuple(box for box in answer.boxes if box.score >= least))
        lines.append({"input": _name(file, request.images), **sure.to_json()})
        truth = [_true_box(item, classes, labels) for item in coco.loadAnns(coco.getAnnIds(imgIds=[image]))]
        pairs += matched_boxes(truth, [box for box in known if box.score >= least])
    is_coco = request.predictions is not None and request.predictions.suffix.lower() == COCO_FILE
    confusion = confusion_of(pairs, least)
    return _Measured(len(images), _precision(coco, results), results if is_coco else lines, confusion)


def _result(image: int, category: object, box: Box) -> dict[str, object]:
    """Return a box in the form of COCO's results."""
    x1, y1, x2, y2 = box.corners
    return {"image_id": image, "category_id": category, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": box.score}


class _Annotation(TypedDict):
    """An object in COCO's annotations. bbox: x, y, width, height."""

    bbox: tuple[float, float, float, float]
    category_id: object
    iscrowd: NotRequired[int]


def _true_box(item: _Annotation, classes: Mapping[object, int], labels: Sequence[str]) -> TrueBox:
    """Return an annotation with its class named as in the model's boxes."""
    x, y, width, height = item["bbox"]
    number = classes[item["category_id"]]
    name = labels[number] if labels else f"class {number}"
    return TrueBox((x, y, x + width, y + height), name, bool(item.get("iscrowd")))


def _precision(coco: COCO, results: list[dict[str, object]]) -> dict[str, float]:
    """Return COCO's metrics of results."""
    from pycocotools.cocoeval import COCOeval

    names = ("mAP 50-95", "mAP 50", "mAP 75")
    if not results:
        return dict.fromkeys(names, 0.0)
    with contextlib.redirect_stdout(io.StringIO()):
        measured = COCOeval(coco, coco.loadRes(results), "bbox")
        measured.evaluate()
        measured.accumulate()
        measured.summarize()
    return {name: max(0.0, float(value)) for name, value in zip(names, measured.stats, strict=False)}


_MEASURES = {"classification": _classes, "ctc-text": _texts, "detection": _boxes}


def _answers(predictor: Predictor, files: Sequence[Path], runner: Runner) -> Iterator[Answer]:
    """Yield the answers to pictures as they are read, reporting progress."""
    runner.report(Phase("evaluate"))
    for index, answer in enumerate(predictor(map(read_image, files)), 1):
        runner.report(Progress("evaluate", index, len(files)))
        yield answer


def _name(file: Path, folder: Path) -> str:
    """Return a picture's name in predictions."""
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def _class_folders(folder: Path) -> list[tuple[Path, str]]:
    """Return pictures with the name of the folder that holds them."""
    pairs = [
        (file, sub.name)
        for sub in sorted(path for path in folder.iterdir() if path.is_dir())
        for file in sorted(sub.iterdir())
        if file.suffix.lower() in IMAGES
    ]
    if not pairs:
        fix = "make a folder of pictures for each class, or give --truth with a CSV file"
        raise SourceError("the folder has no subfolders of pictures", str(folder), fix)
    return pairs


def _table(request: VisionRequest, column: str) -> list[tuple[Path, str]]:
    """Return the rows of a CSV file: each picture and its label."""
    assert request.truth is not None
    fix = f"give a UTF-8 CSV file with the header `file,{column}`"
    try:
        rows = list(csv.DictReader(request.truth.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise SourceError(f"cannot be read: {error}", str(request.truth), fix) from None
    if not rows or any(not row.get("file") or row.get(column) is None for row in rows):
        raise SourceError(f"every row needs `file` and `{column}`", str(request.truth), fix)
    return [(request.images / row["file"], row[column]) for row in rows]


def _numbers(named: Sequence[tuple[Path, str]], labels: Sequence[str], where: str) -> list[tuple[Path, int]]:
    """Return each picture with its class number: by a name among the labels, or the number itself."""
    by_name = {label: index for index, label in enumerate(labels)}
    unknown = sorted({name for _, name in named if name not in by_name and not name.isdecimal()})
    if unknown:
        known = f"the model's {len(labels)} labels" if labels else "numbers, since the config's task has no labels"
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise SourceError(f"no class is called `{unknown[0]}`{more}", where, f"name classes by {known}, or by number")
    return [(file, by_name[name] if name in by_name else int(name)) for file, name in named]


def _annotations(path: Path) -> dict[str, object]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be read: {error}", str(path), "give a JSON file of COCO annotations") from None
    if not isinstance(data, dict) or not {"images", "annotations", "categories"} <= data.keys():
        what = "not COCO annotations: `images`, `annotations` or `categories` is missing"
        raise SourceError(what, str(path))
    return data


def _categories(listed: Sequence[Mapping[str, object]], labels: Sequence[str], where: str) -> dict[int, object]:
    """Return the category of each class: by name if the classes have names, otherwise in the order of their ids."""
    if not labels:
        return {index: category["id"] for index, category in enumerate(listed)}
    by_name = {str(category["name"]): category["id"] for category in listed}
    missing = [name for name in by_name if name not in labels]
    if missing:
        what = f"the annotations have a class `{missing[0]}`, which the model does not"
        raise SourceError(what, where, "use annotations with the model's classes, or labels with the same names")
    return {index: by_name[label] for index, label in enumerate(labels) if label in by_name}


def _all_scores(predictor: Predictor) -> Predictor:
    """Return a predictor that keeps boxes of nearly every score."""
    from dataclasses import replace

    task = predictor.reader.task
    assert task is not None
    assert task.boxes is not None
    boxes = task.boxes.model_copy(update={"min_score": _LEAST_SCORE})
    return replace(predictor, reader=replace(predictor.reader, task=task.model_copy(update={"boxes": boxes})))
