"""`trtkit eval` on labelled pictures: figures that can be checked by hand, and labels that do not fit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import helper
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.support import models
from tests.support.pages import Page, rows_with, svg
from trtkit import evaluate_images, open_model
from trtkit.runtime.tasks.answers import Classes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnx

    from tests.conftest import Ran

    Trtkit = Callable[..., Ran]

CLASSIFIER = """\
name: tiny
source: {onnx: tiny.onnx}
profiles: [{batch: [1, 2, 4]}]
preprocess: {resize: {exact: [16, 16]}}
task: {kind: classification, labels: names.txt}
"""
DETECTOR = """\
name: tiny
source: {onnx: tiny.onnx}
profiles: [{batch: [1, 2, 4]}]
preprocess: {resize: {letterbox: [64, 64]}}
task: {kind: detection, labels: names.txt, boxes: {layout: channels-first}}
"""
NAMES = ["ant", "bee", "cat", "dog", "elk"]


def build(trtkit: Trtkit, workspace: Path, config: str) -> Path:
    model = models.detector() if "detection" in config else models.classifier()
    models.save(model, workspace / "tiny.onnx")
    (workspace / "names.txt").write_text("\n".join(["dark", "light"] if "detection" in config else NAMES))
    (workspace / "tiny.yaml").write_text(config)
    assert trtkit("build", "tiny.yaml", "-o", "bundle", "-q").code == 0
    return workspace / "bundle"


def noise(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
    return path


def test_accuracy_is_the_share_of_pictures_in_the_folder_of_their_class(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(trtkit, workspace, CLASSIFIER)
    drafts = [noise(workspace / "drafts" / f"{index}.png", index) for index in range(6)]
    ranked = [answer for answer in open_model(bundle).predict(drafts) if isinstance(answer, Classes)]
    # Four by their best class, one by its second, one by its last.
    for index, (draft, place) in enumerate(zip(drafts, (0, 0, 0, 0, 1, 4), strict=True)):
        label = ranked[index].labels[place]
        (workspace / "val" / label).mkdir(parents=True, exist_ok=True)
        draft.rename(workspace / "val" / label / draft.name)
    report = json.loads(trtkit("eval", bundle, "--images", "val", "--json").out)
    assert (report["images"], report["task"]) == (6, "classification")
    assert report["measures"] == {"top-1": pytest.approx(4 / 6)}  # of five classes, so no top-5
    pairs = report["confusion"]["pairs"]
    assert sum(pair["count"] for pair in pairs) == 6
    assert sum(pair["count"] for pair in pairs if pair["truth"] == pair["predicted"]) == 4
    wrong = [(ranked[index].labels[place], ranked[index].labels[0]) for index, place in ((4, 1), (5, 4))]
    errors = [(pair["truth"], pair["predicted"]) for pair in pairs if pair["truth"] != pair["predicted"]]
    assert sorted(errors) == sorted(wrong)
    ran = trtkit("eval", bundle, "--images", "val", "--html", "accuracy.html", "--predictions", "answers.jsonl")
    assert "taken for another" in ran.out
    page = Page((workspace / "accuracy.html").read_text())
    (chart,) = page.specs
    assert svg(chart).startswith("<svg")
    squares = rows_with(chart, "share")
    assert {(row["truth"], row["predicted"]): row["count"] for row in squares} == {
        (pair["truth"], pair["predicted"]): pair["count"] for pair in pairs
    }
    lines = [json.loads(line) for line in (workspace / "answers.jsonl").read_text().splitlines()]
    assert [line["truth"] for line in lines] == [line["input"].partition("/")[0] for line in lines]
    assert sorted(
        (line["truth"], line["classes"][0]["label"]) for line in lines if line["truth"] != line["classes"][0]["label"]
    ) == sorted(wrong)


def test_a_table_names_classes_by_label_or_number(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(trtkit, workspace, CLASSIFIER)
    photo = noise(workspace / "photos" / "a.png", 0)
    (answer,) = open_model(bundle).predict([photo])
    assert isinstance(answer, Classes)
    for name in (answer.labels[0], str(answer.ids[0])):
        (workspace / "truth.csv").write_text(f"file,class\na.png,{name}\n")
        ran = trtkit("eval", bundle, "--images", "photos", "--truth", "truth.csv", "-q")
        assert "top-1" in ran.out
        assert "100.00%" in ran.out


def annotations(*boxes: tuple[int, str, list[float]]) -> dict[str, Any]:
    numbers = {"light": 7, "dark": 3}
    return {
        "images": [{"id": 1, "file_name": "white.png"}, {"id": 2, "file_name": "black.png"}],
        "categories": [{"id": number, "name": name} for name, number in numbers.items()],
        "annotations": [
            {"id": index, "image_id": image, "category_id": numbers[name], "bbox": box, "iscrowd": 0}
            | {"area": box[2] * box[3]}
            for index, (image, name, box) in enumerate(boxes, 1)
        ],
    }


WHITE = (1, "light", [100.0, 50.0, 100.0, 50.0])


@pytest.mark.parametrize(
    ("truth", "precision"),
    [
        (annotations(WHITE), 1.0),
        (annotations((1, "dark", WHITE[2])), 0.0),
        (annotations((1, "light", [0, 0, 20, 20])), 0.0),
    ],
)
def test_average_precision_is_that_of_coco(
    truth: dict[str, Any], precision: float, workspace: Path, trtkit: Trtkit
) -> None:
    """200 x 100 of white: one light box, the lower right quarter of the picture."""
    bundle = build(trtkit, workspace, DETECTOR)
    (workspace / "photos").mkdir()
    Image.new("RGB", (200, 100), "white").save(workspace / "photos" / "white.png")
    truth["images"] = truth["images"][:1]
    (workspace / "truth.json").write_text(json.dumps(truth))
    report = json.loads(trtkit("eval", bundle, "--images", "photos", "--truth", "truth.json", "--json").out)
    assert report["measures"]["mAP 50"] == pytest.approx(precision, abs=1e-6)


def test_boxes_are_saved_as_results_that_pycocotools_scores_alike(workspace: Path, trtkit: Trtkit) -> None:
    """A white picture with its light box, and a black one whose dark box is annotated as light."""
    bundle = build(trtkit, workspace, DETECTOR)
    (workspace / "photos").mkdir()
    Image.new("RGB", (200, 100), "white").save(workspace / "photos" / "white.png")
    Image.new("RGB", (64, 64), "black").save(workspace / "photos" / "black.png")
    truth = annotations(WHITE, (2, "light", [0.0, 0.0, 32.0, 32.0]), (2, "dark", [40.0, 40.0, 20.0, 20.0]))
    (workspace / "truth.json").write_text(json.dumps(truth))
    data = ("--images", "photos", "--truth", "truth.json")
    report = json.loads(trtkit("eval", bundle, *data, "--predictions", "boxes.json", "--json").out)
    coco = COCO(str(workspace / "truth.json"))
    measured = COCOeval(coco, coco.loadRes(str(workspace / "boxes.json")), "bbox")
    measured.evaluate()
    measured.accumulate()
    measured.summarize()
    assert report["measures"]["mAP 50-95"] == pytest.approx(measured.stats[0])
    assert 0 < measured.stats[0] < 1
    pairs = {(pair["truth"], pair["predicted"]): pair["count"] for pair in report["confusion"]["pairs"]}
    # The letterbox's gray bars make the white picture a little dark: one box more, around nothing.
    assert pairs == {("light", "light"): 1, (None, "dark"): 1, ("light", "dark"): 1, ("dark", None): 1}
    assert report["confusion"]["min_score"] == 0.25
    ran = trtkit("eval", bundle, *data, "--html", "accuracy.html", "--predictions", "boxes.jsonl")
    assert "(no object)" in ran.out
    assert "(no object)" in Page((workspace / "accuracy.html").read_text()).text
    lines = [json.loads(line) for line in (workspace / "boxes.jsonl").read_text().splitlines()]
    assert {line["input"]: len(line["boxes"]) for line in lines} == {"white.png": 2, "black.png": 1}


def reads_ab() -> onnx.ModelProto:
    """A recognizer [batch, 2 steps, 3 characters] that reads "ab" on every picture."""
    steps = np.eye(3, dtype=np.float32)[None, 1:]
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[2, 3], keepdims=0, name="mean"),
        helper.make_node("Unsqueeze", ["mean", "middle"], ["means"], name="means"),
        helper.make_node("Mul", ["means", "zero"], ["zeros"], name="zeros"),
        helper.make_node("Add", ["zeros", "steps"], ["y"], name="y"),
    ]
    held = [models.constant("middle", [1], "int64"), models.constant("zero", 0.0), models.constant("steps", steps)]
    inputs = [models.tensor("images", "batch", 3, 16, 16)]
    model = models.model(nodes, inputs, [models.tensor("y", "batch", 2, 3)], held)
    model.metadata_props.add(key="character", value="a\nb")
    return model


def test_texts_and_their_characters_are_counted(workspace: Path, trtkit: Trtkit) -> None:
    """Two lines: one right, one of three characters that lacks one."""
    models.save(reads_ab(), workspace / "tiny.onnx")
    (workspace / "tiny.yaml").write_text(
        CLASSIFIER.replace("kind: classification, labels: names.txt", "kind: ctc-text")
    )
    assert trtkit("build", "tiny.yaml", "-o", "bundle", "-q").code == 0
    for name in ("one", "two"):
        noise(workspace / "lines" / f"{name}.png", 0)
    (workspace / "truth.csv").write_text("file,text\none.png,ab\ntwo.png,abb\n")
    report = json.loads(trtkit("eval", "bundle", "--images", "lines", "--truth", "truth.csv", "--json").out)
    assert report["measures"] == {"texts": 0.5, "characters": pytest.approx(1 - 1 / 5)}
    assert evaluate_images("bundle", "lines", "truth.csv").measures == report["measures"]


@pytest.mark.parametrize(
    ("config", "truth", "error"),
    [
        (CLASSIFIER, "file,class\na.png,cow\n", "truth: no class is called `cow`\nfix: name classes by the model's 5"),
        (CLASSIFIER, "name,class\na.png,cow\n", "truth: every row needs `file` and `class`"),
        (CLASSIFIER, "", "truth: every row needs `file` and `class`"),
        (DETECTOR, "{}", "truth: not COCO annotations"),
        (DETECTOR, "file,class\n", "truth: cannot be read"),
        (
            CLASSIFIER.replace("kind: classification, labels: names.txt", "kind: embedding"),
            "",
            "tasks of kind `embedding` cannot be evaluated",
        ),
        (CLASSIFIER.replace("task:", "# "), "", "the config has no `task:`"),
    ],
)
def test_truth_that_does_not_fit_is_refused(
    config: str, truth: str, error: str, workspace: Path, trtkit: Trtkit
) -> None:
    bundle = build(trtkit, workspace, config)
    noise(workspace / "photos" / "a.png", 0)
    (workspace / "truth").write_text(truth)
    ran = trtkit("eval", bundle, "--images", "photos", "--truth", "truth")
    assert (ran.code, ran.out) == (1, "")
    assert error in ran.err.partition("error: ")[2]


def test_options_of_language_models_and_of_vision_do_not_mix(workspace: Path, trtkit: Trtkit) -> None:
    for words in (["--images", ".", "--questions"], ["--truth", "a.csv"], ["--html", "a.html"], []):
        assert trtkit("eval", "bundle", *words).code == 2


def test_conf_decides_which_boxes_are_confused(workspace: Path, trtkit: Trtkit) -> None:
    """A grey picture has a box of each class with a score near one half; precision counts boxes of any score."""
    bundle = build(trtkit, workspace, DETECTOR)
    (workspace / "photos").mkdir()
    Image.new("RGB", (200, 100), (140, 140, 140)).save(workspace / "photos" / "white.png")
    truth = annotations(WHITE)
    truth["images"] = truth["images"][:1]
    (workspace / "truth.json").write_text(json.dumps(truth))
    words = ("eval", bundle, "--images", "photos", "--truth", "truth.json", "--json", "--conf")
    low, high = (json.loads(trtkit(*words, conf).out) for conf in ("0.3", "0.9"))
    assert low["measures"] == high["measures"]
    counts = [
        {(pair["truth"], pair["predicted"]): pair["count"] for pair in report["confusion"]["pairs"]}
        for report in (low, high)
    ]
    assert counts == [{("light", "light"): 1, (None, "dark"): 1}, {("light", None): 1}]
    assert high["confusion"]["min_score"] == 0.9


def test_conf_is_for_detectors(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(trtkit, workspace, CLASSIFIER)
    (workspace / "photos").mkdir()
    ran = trtkit("eval", bundle, "--images", "photos", "--conf", "0.3")
    assert ran.code in {1, 2}
    assert "thresholds are for detectors; the model's config has no `task.boxes`" in ran.err
