"""What Ultralytics' metadata decide: pictures, task, layout of boxes and profiles."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import onnx
import pytest

from tests.support import models
from tests.support.models import exported_by_ultralytics
from trtkit.config.schema import ModelConfig
from trtkit.resolve import resolve
from trtkit.sources.onnx_file import metadata

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.models import Dim

LETTERBOX = {"resize": {"letterbox": [64, 64]}}
PEOPLE = {"task": "pose", "names": "{0: 'person'}", "kpt_shape": "[17, 3]"}
NAMES_80 = repr({index: f"class {index}" for index in range(80)})


def graph(*outputs: tuple[Dim, ...], edges: tuple[Dim, Dim] = (64, 64)) -> onnx.ModelProto:
    """A graph of images [1, 3, H, W] with outputs of these shapes, none of them computed from the images."""
    tensors = [models.tensor(f"output{index}", *shape) for index, shape in enumerate(outputs)]
    nodes = [onnx.helper.make_node("Identity", ["images"], [tensor.name]) for tensor in tensors]
    return models.model(nodes, [models.tensor("images", 1, 3, *edges)], tensors)


def config_of(model: onnx.ModelProto, folder: Path, **keys: Any) -> ModelConfig:
    path = models.save(model, folder / "m.onnx")
    return resolve(ModelConfig.model_validate({"source": {"onnx": str(path)}, **keys})).config


def said(config: ModelConfig) -> dict[str, Any]:
    """Return the keys that the file decided."""
    return config.model_dump(mode="json", include={"preprocess", "task"}, exclude_unset=True, exclude_none=True)


# Metadata that differ from those of a detector of two classes, shapes of the outputs, preprocess, and kind and layout.
FILES: list[tuple[str, dict[str, str], list[tuple[Dim, ...]], Any, Any]] = [
    ("YOLO11", {}, [(1, 6, 84)], LETTERBOX, ("detection", "channels-first")),
    ("of COCO", {"names": NAMES_80}, [(1, 84, "anchors")], LETTERBOX, ("detection", "channels-first")),
    ("84 places, 84 rows", {"names": NAMES_80}, [(1, 84, 84)], None, None),
    ("YOLOv10", {"names": NAMES_80}, [(1, 300, 6)], LETTERBOX, ("detection", "suppressed")),
    ("YOLO26", {"end2end": "True"}, [(1, 300, 6)], LETTERBOX, ("detection", "suppressed")),
    ("nms=True", {"args": "{'half': False, 'nms': True}"}, [(1, 300, 6)], LETTERBOX, ("detection", "suppressed")),
    ("RT-DETR of 2 classes, or YOLOv10", {}, [(1, 300, 6)], None, None),
    ("RT-DETR", {"names": NAMES_80}, [(1, 300, 84)], None, None),
    ("poses", PEOPLE, [(1, 56, 84)], LETTERBOX, ("pose", "channels-first")),
    ("poses, nms=True", PEOPLE, [(1, 300, 57)], LETTERBOX, ("pose", "suppressed")),
    ("poses without scores", PEOPLE | {"kpt_shape": "[17, 2]"}, [(1, 39, 84)], LETTERBOX, None),
    ("poses of 2 classes", PEOPLE | {"names": "{0: 'a', 1: 'b'}"}, [(1, 57, 84)], LETTERBOX, None),
    ("masks", {"task": "segment"}, [(1, 38, 84), (1, 32, 16, 16)], LETTERBOX, None),
    ("turned boxes", {"task": "obb"}, [(1, 7, 84)], LETTERBOX, None),
    ("classes", {"task": "classify"}, [(1, 2)], {"resize": {"shortest_edge": 64}, "crop": [64, 64]}, "classification"),
    ("old classes", {"task": "classify", "version": "8.0.20"}, [(1, 2)], None, "classification"),
    ("depth, whatever it may be", {"task": "depth"}, [(1, 64, 64)], None, None),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "outputs", "preprocess", "task"), [file[1:] for file in FILES],
                         ids=[file[0] for file in FILES])  # fmt: skip
def test_the_file_decides(
    changes: dict[str, str], outputs: list[tuple[Dim, ...]], preprocess: Any, task: Any, tmp_path: Path
) -> None:
    sections = said(config_of(exported_by_ultralytics(graph(*outputs), **changes), tmp_path))
    kinds = {"kind": task} if isinstance(task, str) else task and {"kind": task[0], "boxes": {"layout": task[1]}}
    expected = {"preprocess": preprocess, "task": kinds}
    assert sections == {key: value for key, value in expected.items() if value is not None}


def test_a_config_that_says_it_itself_wins(tmp_path: Path) -> None:
    model = exported_by_ultralytics(graph((1, 6, 84), edges=("height", "width")))
    stated = {"preprocess": {"resize": {"letterbox": [32, 96]}}, "task": {"kind": "embedding"}}
    config = config_of(model, tmp_path, **stated)
    assert said(config) == stated
    assert {key: sizes.opt for key, sizes in config.profiles[0].items()} == {"images.2": 32, "images.3": 96}


def test_a_dynamic_height_and_width_are_those_of_the_pictures(tmp_path: Path) -> None:
    model = exported_by_ultralytics(graph((1, 6, 84), edges=("height", "width")), imgsz="[64, 96]")
    config = config_of(model, tmp_path, profiles=[{"height": [32, 64, 96]}, {}])
    ranges = [{key: (r.min, r.opt, r.max) for key, r in profile.items()} for profile in config.profiles]
    fixed = {"images.2": (64, 64, 64), "images.3": (96, 96, 96)}
    assert ranges == [{"height": (32, 64, 96), "images.3": (96, 96, 96)}, fixed]
    assert said(config)["preprocess"] == {"resize": {"letterbox": [64, 96]}}


@pytest.mark.parametrize("changes", [{"imgsz": "[" * 9999}, {"imgsz": "None"}, {"imgsz": "[-1, 0]"}])
def test_metadata_that_cannot_be_read_decide_nothing(changes: dict[str, str], tmp_path: Path) -> None:
    assert said(config_of(exported_by_ultralytics(graph((1, 6, 84)), **changes), tmp_path)) == {}


def test_names_that_cannot_be_read_decide_no_boxes(tmp_path: Path) -> None:
    assert said(config_of(exported_by_ultralytics(graph((1, 6, 84)), names="{0: nobody}"), tmp_path)) == {}


def test_metadata_are_those_that_onnx_reads_and_none_of_damaged_files(tmp_path: Path) -> None:
    model = exported_by_ultralytics(models.detector())
    data = model.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    assert metadata(tmp_path / "m.onnx") == {entry.key: entry.value for entry in model.metadata_props}
    for length in range(0, len(data), 7):
        (tmp_path / "m.onnx").write_bytes(data[:length])
        metadata(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 64)
    assert metadata(tmp_path / "m.onnx") == {}
    assert metadata(tmp_path) == {}


@pytest.mark.skipif(importlib.util.find_spec("nudenet") is None, reason="needs `pip install --no-deps nudenet`")
def test_a_yolov8_that_ultralytics_exported(tmp_path: Path) -> None:
    config = resolve(ModelConfig.model_validate({"source": {"onnx": "package://nudenet/320n.onnx"}})).config
    assert said(config) == {
        "preprocess": {"resize": {"letterbox": [320, 320]}},
        "task": {"kind": "detection", "boxes": {"layout": "channels-first"}},
    }
    assert {key: sizes.opt for key, sizes in config.profiles[0].items()} == {"images.2": 320, "images.3": 320}
