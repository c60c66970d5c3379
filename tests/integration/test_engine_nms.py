"""NMS inside the engine selects the same boxes as NMS on the host, in every command; wrong boxes are noticed."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.selection import slow_unless
from tests.support import models
from trtkit import evaluate_images, open_model
from trtkit.builder.stages import OnnxFile, PreparedStage
from trtkit.config.schema import ModelConfig
from trtkit.config.task import Boxes
from trtkit.errors import SourceError
from trtkit.jobs.events import ignore
from trtkit.jobs.job import JobContext
from trtkit.network.input_spec import ProfileShapes
from trtkit.network.onnx import custom_ops
from trtkit.network.onnx.nms import NMS_OUTPUTS, append_nms
from trtkit.runtime.tasks.answers import DetectedBoxes as BoxesAnswer
from trtkit.verification.job import verify
from trtkit.verification.jobs import VerifyRequest, VerifySettings
from trtkit.verification.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.verification.report import Report

    Trtkit = Callable[..., Ran]

CONFIG = """\
source: {{onnx: tiny.onnx}}
precision: {precision}
profiles: [{{batch: [1, 2, 4]}}]
preprocess: {{resize: {{letterbox: [64, 64]}}}}
task:
  kind: detection
  boxes: {{layout: {layout}, nms: {nms}, min_score: 0.4, max_iou: 0.3, max_boxes: {most}}}
"""


def build(trtkit: Trtkit, workspace: Path, model: onnx.ModelProto, name: str, **keys: Any) -> Path:
    models.save(model, workspace / "tiny.onnx")
    values = {"precision": "fp32", "layout": "channels-first", "nms": "engine", "most": 40, **keys}
    (workspace / f"{name}.yaml").write_text(CONFIG.format(**values))
    built = trtkit("build", f"{name}.yaml", "-o", name, "-q")
    assert built.code == 0, built.err
    return workspace / name


def pictures(count: int = 5) -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [
        Image.fromarray(random.integers(0, 256, (20 + 9 * index, 60, 3), dtype=np.uint8)).resize((90, 70))
        for index in range(count)
    ]


def answers(bundle: Path) -> list[BoxesAnswer]:
    return [answer for answer in open_model(bundle).predict(pictures()) if isinstance(answer, BoxesAnswer)]


@pytest.mark.parametrize(
    ("layout", "precision", "most", "opset"),
    [
        pytest.param("channels-first", "fp32", 40, 17, marks=pytest.mark.slow),
        pytest.param("anchors", "fp32", 40, 17, marks=pytest.mark.slow),
        ("channels-first", "fp16", 40, 17),
        ("anchors", "fp32", 3, 13),
    ],
)
def test_the_engine_selects_what_the_host_selects(
    layout: str, precision: str, most: int, opset: int, workspace: Path, trtkit: Trtkit
) -> None:
    model = models.crowded_detector(layout, opset=opset)
    keys = {"layout": layout, "precision": precision, "most": most}
    engine, host = (build(trtkit, workspace, model, nms, nms=nms, **keys) for nms in ("engine", "host"))
    assert [each.name for each in open_model(engine).bundle.manifest.outputs] == list(NMS_OUTPUTS)
    ours, theirs = answers(engine), answers(host)
    assert [len(each.boxes) for each in ours] == [len(each.boxes) for each in theirs]
    assert sum(len(each.boxes) for each in ours) > 5
    for one, other in zip(ours, theirs, strict=True):
        for box, wanted in zip(one.boxes, other.boxes, strict=True):
            assert box.class_id == wanted.class_id
            assert box.score == pytest.approx(wanted.score, abs=1e-6)
            assert box.corners == pytest.approx(wanted.corners, abs=1e-3)
    report = trtkit("verify", engine, "--json").json()
    assert report["passed"], [report["nms"], report["outputs"], report["task"]]
    assert report["nms"]["boxes"] > 40
    assert list(report["outputs"]) == ["rows" if layout == "channels-first" else "turned"]
    assert report["batch_rows"] == "independent"


CHANGES = ({"max_iou": 0.35}, {"min_score": 0.42}, {"max_boxes": 9}, "corners", "classes", "best")


@pytest.mark.parametrize(
    ("change", "precision"),
    slow_unless(
        lambda change, precision: precision == "fp32" or change == "corners",  # whose mistake is as small as fp16's
        itertools.product(CHANGES, ("fp32", "fp16")),
    ),
)
def test_a_wrong_suppression_is_caught(change: Any, precision: str, tmp_path: Path) -> None:
    report = planted(change, precision, tmp_path)
    assert (report.passed, verdict(report)) == (False, "FAIL (out of tolerance)")
    assert all(output.passed for output in report.outputs.values())
    assert report.nms is not None
    assert report.nms.problem.startswith("image ")


def test_the_planted_network_is_right_without_its_mistake(tmp_path: Path) -> None:
    report = planted({}, "fp32", tmp_path)
    assert (report.passed, verdict(report)) == (True, "PASS")


def planted(change: Any, precision: str, folder: Path) -> Report:
    """Verify a network whose tail has a mistake, as if it were built from the config."""
    source = models.crowded_detector()
    boxes = {"layout": "channels-first", "nms": "engine", "min_score": 0.4, "max_iou": 0.3, "max_boxes": 120}
    network = onnx.ModelProto()
    network.CopyFrom(source)
    append_nms(network, Boxes.model_validate(boxes | (change if isinstance(change, dict) else {})))
    constants = {each.name: each for each in network.graph.initializer if each.name.startswith("nms/")}
    for name, each in constants.items():
        values = onnx.numpy_helper.to_array(each).copy()
        if change == "corners" and values.shape == () and values == 0.5:
            values *= np.float32(1.001)
        elif change == "classes" and values.size == 3:
            values = values[..., ::-1].copy()
        elif change == "best" and values.shape == () and values == -1:
            values += np.float32(1.45)
        each.CopyFrom(onnx.numpy_helper.from_array(values, name))
    path = models.save(custom_ops.lower(network)[0], folder / "network.onnx")
    config = {
        "precision": precision,
        "source": {"onnx": str(models.save(source, folder / "source.onnx"))},
        "task": {"kind": "detection", "boxes": boxes},
    }
    stage = PreparedStage("m", "parser", ("model",), OnnxFile(path, path))
    profile = {"images": ProfileShapes((1, 3, 64, 64), (2, 3, 64, 64), (4, 3, 64, 64))}
    request = VerifyRequest(ModelConfig.model_validate(config), "tensorrt_rtx", VerifySettings(), (stage,), (profile,))
    return verify(request, JobContext(ignore))


def test_a_network_without_its_source_is_verified_on_its_own_rows(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(trtkit, workspace, models.crowded_detector(), "engine")
    (workspace / "tiny.onnx").unlink()
    ran = trtkit("verify", bundle)
    assert ran.code == 0, ran.err
    assert "network's own ONNX file; the source is not here any more" in " ".join(ran.out.split())
    assert "as the host selects" in " ".join(ran.out.split())


def test_nothing_selected_proves_nothing(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(trtkit, workspace, models.detector(), "engine")
    config = workspace / "engine.yaml"
    config.write_text(config.read_text().replace("min_score: 0.4", "min_score: 0.999"))
    Image.new("RGB", (64, 64), "gray").save(workspace / "gray.png")
    ran = trtkit("verify", config, "--inputs", "gray.png")
    assert ran.code == 0, ran.err
    printed = " ".join(ran.out.split())
    assert "PASS (inconclusive)" in printed
    assert "no box reached `task.boxes.min_score`: give pictures" in printed
    assert bundle.exists()


def test_average_precision_is_the_hosts_and_its_limit_is_named(workspace: Path, trtkit: Trtkit) -> None:
    """Both count boxes of 0.001 and more if the engine keeps them; else its figure says what it left out."""
    (workspace / "photos").mkdir()
    truth: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
    truth["categories"] = [{"id": number, "name": str(number)} for number in range(3)]
    host = build(trtkit, workspace, models.crowded_detector(), "host", nms="host")
    for index, (picture, answer) in enumerate(zip(pictures(), answers(host), strict=True)):
        picture.save(workspace / "photos" / f"{index}.png")
        truth["images"].append({"id": index, "file_name": f"{index}.png"})
        for box in answer.boxes[::2]:
            x1, y1, x2, y2 = box.corners
            place = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
            number = len(truth["annotations"]) + 1
            truth["annotations"].append({"id": number, "image_id": index, "category_id": box.class_id, **place})
    (workspace / "truth.json").write_text(json.dumps(truth))
    whole = build(trtkit, workspace, models.crowded_detector(), "engine")
    (workspace / "engine.yaml").write_text((workspace / "engine.yaml").read_text().replace("0.4", "0.001"))
    assert trtkit("build", "engine.yaml", "-o", "low", "-q").code == 0
    measured = [evaluate_images(bundle, "photos", "truth.json") for bundle in (host, "low", whole)]
    assert measured[0].measures == pytest.approx(measured[1].measures)
    assert 0.2 < measured[0].measures["mAP 50"] < 1
    assert [bool(each.note) for each in measured] == [False, False, True]
    assert "a score below 0.4" in measured[2].note
    assert "a score below 0.4" in " ".join(
        trtkit("eval", whole, "--images", "photos", "--truth", "truth.json").out.split()
    )


def test_another_limit_is_another_engine(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(trtkit, workspace, models.crowded_detector(), "engine", most=3)
    before = max(len(each.boxes) for each in answers(bundle))
    assert trtkit("build", "engine.yaml", "-o", "engine", "-q", "--set", "task.boxes.max_boxes=2").code == 0
    assert (before, max(len(each.boxes) for each in answers(bundle))) == (3, 2)


def test_labels_of_another_number_of_classes_are_refused(workspace: Path, trtkit: Trtkit) -> None:
    (workspace / "names.txt").write_text("ant\nbee\n")
    bundle = build(trtkit, workspace, models.crowded_detector(), "engine", most="40}\n  labels: names.txt #")
    with pytest.raises(SourceError, match="names 2 classes; the outputs have 3"):
        open_model(bundle).predict(pictures())


def with_outputs(*outputs: onnx.ValueInfoProto) -> onnx.ModelProto:
    model = models.crowded_detector()
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return model


def with_a_taken_name() -> onnx.ModelProto:
    model = models.crowded_detector()
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = "detection_boxes" if name == "flat" else name
    return model


@pytest.mark.parametrize(
    ("model", "layout", "error"),
    [
        (
            with_outputs(models.tensor("rows", "batch", 7, 64), models.tensor("scaled", "batch", 7, 64)),
            "channels-first",
            "NMS in the engine reads one output; the model has 2: `rows`, `scaled`",
        ),
        (
            with_outputs(models.tensor("cells", "batch", 7, 8, 8)),
            "channels-first",
            "output `cells`, float [-1, 7, 8, 8], is not fp32 rows in the layout `channels-first`",
        ),
        (
            models.model(
                [onnx.helper.make_node("Relu", ["images"], ["rows"], name="relu")],
                [models.tensor("images", "batch", "rows", "boxes")],
                [models.tensor("rows", "batch", "rows", "boxes")],
            ),
            "anchors",
            "the number of classes of output `rows` is not known: axis 2 is dynamic",
        ),
        (with_a_taken_name(), "channels-first", "a tensor is already called `detection_boxes`"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_by_name(model: onnx.ModelProto, layout: str, error: str) -> None:
    with pytest.raises(SourceError) as refused:
        append_nms(model, Boxes.model_validate({"layout": layout, "nms": "engine"}))
    assert refused.value.what == error
    assert refused.value.fix


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ("boxes: {layout: suppressed, nms: engine}", "`nms: engine` is for the layouts `channels-first` and `anchors`"),
        ("boxes: {layout: queries, scores: sigmoid, nms: engine}", "`nms: engine` is for the layouts"),
        ("boxes: {layout: anchors, nms: engine, max_boxes: 4000}", "`max_boxes` must be at most 3840"),
        ("boxes: {layout: anchors, nms: gpu}", "task.boxes.nms"),
    ],
)
def test_configs_that_do_not_fit_are_refused(keys: str, error: str, workspace: Path, trtkit: Trtkit) -> None:
    (workspace / "m.yaml").write_text(f"source: {{onnx: m.onnx}}\ntask:\n  kind: detection\n  {keys}\n")
    ran = trtkit("config", "validate", "m.yaml")
    assert ran.code != 0
    assert error in " ".join((ran.out + ran.err).split())
    (workspace / "m.yaml").write_text(
        "source: {onnx: m.onnx}\ntask: {kind: pose, boxes: {layout: channels-first, nms: engine}}\n"
    )
    assert "`boxes.nms` must be `host` for the kind `pose`" in " ".join(trtkit("build", "m.yaml").err.split())
