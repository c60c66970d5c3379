"""`trtkit run` and `predict` of a detector: thresholds, annotated videos, saved predictions, all forms of pictures."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from tests.integration.test_eval_vision import CLASSIFIER, DETECTOR, build
from tests.support import models
from trtkit import open_model
from trtkit.errors import RequestError, SourceError
from trtkit.runtime.tasks.answers import DetectedBoxes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.conftest import Ran

    Trtkit = Callable[..., Ran]


def grey(path: Path, level: int, size: tuple[int, int] = (64, 64)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level,) * 3).save(path)
    return path


def video(path: Path, levels: Sequence[int], milliseconds: Sequence[int], size: tuple[int, int] = (64, 48)) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for level, time in zip(levels, milliseconds, strict=True):
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), level, np.uint8), format="rgb24")
            frame = frame.reformat(format="yuv420p")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def frames(path: Path) -> list[tuple[float, np.ndarray[Any, Any]]]:
    with av.open(str(path)) as container:
        return [(frame.time or 0.0, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def answers(ran: Ran) -> list[dict[str, Any]]:
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_a_lower_conf_shows_weaker_boxes_and_a_higher_one_hides_them(workspace: Path, trtkit: Trtkit) -> None:
    """A picture of grey 0.7 is light by 0.7 and dark by 0.3."""
    bundle, photo = build(trtkit, workspace, DETECTOR), grey(workspace / "grey.png", 179)
    scores = {}
    for conf in (0.25, 0.4, 0.8):
        (answer,) = answers(trtkit("run", bundle, photo, "--conf", conf, "--json"))
        scores[conf] = [round(box["score"], 1) for box in answer["boxes"]]
    assert scores == {0.25: [0.7, 0.3], 0.4: [0.7], 0.8: []}
    (boxes,) = open_model(bundle).predict(photo, conf=0.4)
    assert isinstance(boxes, DetectedBoxes)
    assert [box.label for box in boxes.boxes] == ["light"]


def overlapping() -> Any:
    """Two boxes of class 1 that overlap by 2/3 of their union, whatever the picture: 8 of 10 of 40 pixels."""
    model = models.detector()
    for tensor in model.graph.initializer:
        values = np.zeros((6, 50), np.float32)
        if tensor.name == "offset":
            values[:4, 0], values[:4, 1] = (20, 20, 40, 40), (28, 20, 40, 40)
            values[5, :2] = 0.9, 0.8
        if tensor.name in {"offset", "slope"}:
            tensor.CopyFrom(models.constant(tensor.name, values))
    return model


def test_iou_decides_how_far_boxes_of_a_class_may_overlap(workspace: Path, trtkit: Trtkit) -> None:
    bundle_config = DETECTOR.replace("labels: names.txt, ", "")
    models.save(overlapping(), workspace / "tiny.onnx")
    (workspace / "tiny.yaml").write_text(bundle_config)
    assert trtkit("build", "tiny.yaml", "-o", "bundle", "-q").code == 0
    photo = grey(workspace / "grey.png", 100)
    counts = []
    for words in ([], ["--iou", "0.6"], ["--iou", "0.7"]):
        (answer,) = answers(trtkit("run", "bundle", photo, "--json", *words))
        counts.append(len(answer["boxes"]))
    assert counts == [1, 1, 2]


@pytest.mark.parametrize(
    ("config", "words", "error"),
    [
        (CLASSIFIER, ["--conf", "0.5"], "conf: thresholds are for detectors; the model's config has no `task.boxes`"),
        (DETECTOR.replace("channels-first", "channels-first, nms: engine"), ["--conf", "0.1"],
         "conf: the engine leaves out boxes that score below 0.25; 0.1 is lower\n"
         "fix: build with `--set task.boxes.min_score=0.1`"),
        (DETECTOR.replace("channels-first", "channels-first, nms: engine"), ["--iou", "0.5"],
         "iou: non-maximum suppression runs in the engine\nfix: build with `--set task.boxes.max_iou=...`"),
        (DETECTOR, ["--predictions", "boxes.csv"], "predictions: unknown kind of file `.csv`\nfix: end it in .jsonl"),
        (CLASSIFIER, ["--predictions", "boxes.json"], "predictions: COCO's form is for detectors\nfix: end the file"),
        (DETECTOR, ["--predictions", "no/boxes.json"], "predictions: `no/boxes.json` cannot be written: no such"),
        (DETECTOR, ["--output", "."], ".: answers would overwrite `grey.png`\nfix: choose another folder"),
    ],
)  # fmt: skip
def test_thresholds_and_files_that_do_not_apply_are_refused(
    config: str, words: list[str], error: str, workspace: Path, trtkit: Trtkit
) -> None:
    bundle, photo = build(trtkit, workspace, config), grey(workspace / "grey.png", 100)
    before = photo.read_bytes()
    ran = trtkit("run", bundle, photo, *words)
    assert (ran.code != 0, ran.out) == (True, "")
    assert error in ran.err
    assert photo.read_bytes() == before


def test_an_engine_with_nms_takes_a_higher_conf(workspace: Path, trtkit: Trtkit) -> None:
    config = DETECTOR.replace("channels-first", "channels-first, nms: engine")
    bundle, photo = build(trtkit, workspace, config), grey(workspace / "grey.png", 179)
    counts = [
        len(answers(trtkit("run", bundle, photo, "--json", *words))[0]["boxes"]) for words in ([], ["--conf", "0.4"])
    ]
    assert counts == [2, 1]


def test_a_video_comes_out_as_a_video_with_its_boxes_and_times(workspace: Path, trtkit: Trtkit) -> None:
    """Odd sizes, a gap in time; a box's corner is drawn where the network says."""
    bundle = build(trtkit, workspace, DETECTOR)
    times = [0, 40, 80, 400, 440]
    walk = video(workspace / "walk.mkv", [255] * 5, times, (128, 96))
    ran = trtkit("run", bundle, walk, "--output", "drawn", "--every", "2", "--json")
    assert [line["input"] for line in answers(ran)] == ["walk.mkv#0", "walk.mkv#2", "walk.mkv#4"]
    shown = frames(workspace / "drawn" / "walk.mkv.mp4")
    assert [time for time, _ in shown] == pytest.approx([0, 0.08, 0.44], abs=1e-3)
    # The lower right quarter of the letterboxed input 64 x 64: the picture is 64 x 48 in it, so pixels (64, 48) on.
    for _, pixels in shown:
        assert pixels.shape == (96, 128, 3)
        assert pixels[90, 10].min() > 200  # white outside the box
        assert pixels[80, 64:67].min() < 150  # its left edge
    assert sorted(path.name for path in (workspace / "drawn").iterdir()) == ["walk.mkv.mp4"]


def test_two_videos_and_a_picture_have_a_file_each(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(trtkit, workspace, DETECTOR)
    grey(workspace / "in" / "b.png", 0)
    video(workspace / "in" / "a.mp4", [255, 0], [0, 40])
    video(workspace / "in" / "c.avi", [0, 255, 0], [0, 40, 80])
    assert trtkit("run", bundle, "in", "--output", "drawn", "-q").code == 0
    drawn = workspace / "drawn"
    assert sorted(path.name for path in drawn.iterdir()) == ["a.mp4", "b.png", "c.avi.mp4"]
    assert [len(frames(drawn / name)) for name in ("a.mp4", "c.avi.mp4")] == [2, 3]


def test_a_video_that_breaks_off_leaves_no_file(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(trtkit, workspace, DETECTOR)
    walk = video(workspace / "walk.mkv", list(range(0, 250, 5)), list(range(0, 2000, 40)), (640, 480))
    (workspace / "torn.png").write_bytes(grey(workspace / "whole.png", 9).read_bytes()[:-30])
    ran = trtkit("run", bundle, walk, "torn.png", "--output", "drawn", "--predictions", "all.jsonl")
    assert ran.code == 1
    assert "torn.png: not a readable image" in ran.err
    assert list((workspace / "drawn").iterdir()) == []
    assert not (workspace / "all.jsonl").exists()


def test_predictions_are_read_by_pycocotools(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(trtkit, workspace, DETECTOR)
    photos = [grey(workspace / f"{level}.png", level, (200, 100)) for level in (255, 128, 0)]
    lines = answers(trtkit("run", bundle, *photos, "--json", "--predictions", "boxes.json"))
    coco = COCO(str(workspace / "boxes.json"))
    assert {category["name"] for category in coco.loadCats(coco.getCatIds())} == {"dark", "light"}
    for line in lines:
        (image,) = [image for image in coco.imgs.values() if image["file_name"] == line["input"]]
        assert (image["width"], image["height"]) == (200, 100)
        boxes = coco.loadAnns(coco.getAnnIds(imgIds=[image["id"]]))
        read = [[box["bbox"][0], box["bbox"][1], box["bbox"][0] + box["bbox"][2], box["bbox"][1] + box["bbox"][3]]
                for box in boxes]  # fmt: skip
        assert read == [pytest.approx(box["box"], abs=0.01) for box in line["boxes"]]
        assert [coco.cats[box["category_id"]]["name"] for box in boxes] == [box["label"] for box in line["boxes"]]
    assert [len(line["boxes"]) for line in lines] == [2, 2, 1]  # the bars of the letterbox are grey


def test_predictions_as_lines_are_what_json_prints(workspace: Path, trtkit: Trtkit) -> None:
    bundle, photo = build(trtkit, workspace, CLASSIFIER), grey(workspace / "grey.png", 100)
    ran = trtkit("run", bundle, photo, "--json", "--predictions", "classes.jsonl")
    assert (workspace / "classes.jsonl").read_text() == ran.out


def test_python_takes_every_form_of_a_picture(workspace: Path, trtkit: Trtkit) -> None:
    bundle, white = build(trtkit, workspace, DETECTOR), grey(workspace / "in" / "white.png", 255)
    video(workspace / "in" / "walk.mp4", [255, 255], [0, 40])
    model, pixels = open_model(bundle), np.full((64, 64, 3), 255, np.uint8)
    (expected,) = model.predict(white)
    assert isinstance(expected, DetectedBoxes)
    for item in (str(white), white.read_bytes(), pixels, Image.open(white), [white.read_bytes()], pixels[None]):
        (answer,) = model.predict(item)
        assert answer == expected
    folder = list(model.annotate(workspace / "in"))
    assert [item.name for item in folder] == ["walk.mp4#0", "walk.mp4#1", "white.png"]
    assert [len(item.answer.boxes) for item in folder if isinstance(item.answer, DetectedBoxes)] == [1, 1, 1]
    assert len(list(model.predict(workspace / "in", every=2))) == 2
    shown = folder[2]._repr_png_()
    assert shown is not None
    with Image.open(io.BytesIO(shown)) as drawn:
        assert drawn.size == (64, 64)
        assert np.asarray(drawn).min() < 255


def test_python_refuses_what_is_not_a_picture(workspace: Path, trtkit: Trtkit) -> None:
    model = open_model(build(trtkit, workspace, DETECTOR))
    (workspace / "a.npz").write_bytes(b"")
    refused: list[tuple[Any, str]] = [
        (workspace / "none.png", "no such file"),
        (workspace / "a.npz", "a .npz file is not a picture"),
        (b"GIF", "image0: not a readable image"),
        (3, "expected a picture or its path, got int"),
        (io.BytesIO(b""), "expected a picture or its path, got BytesIO"),
    ]
    for item, error in refused:
        with pytest.raises(SourceError, match=error):
            list(model.predict(item))
    with pytest.raises(RequestError, match="conf: 25 is not between 0 and 1"):
        list(model.predict(np.zeros((8, 8, 3), np.uint8), conf=25))


def test_a_picture_too_thin_to_be_scaled_is_named(workspace: Path, trtkit: Trtkit) -> None:
    config = CLASSIFIER.replace("{resize: {exact: [16, 16]}}", "{resize: {shortest_edge: 16}, crop: [16, 16]}")
    model = open_model(build(trtkit, workspace, config))
    grey(workspace / "fine.png", 100)
    Image.new("RGB", (9_000_000, 1)).save(workspace / "thin.png")
    with pytest.raises(SourceError, match="an image of 9000000x1 pixels would be scaled to") as error:
        list(model.predict([workspace / "fine.png", workspace / "thin.png"]))
    assert error.value.where == "thin.png"
