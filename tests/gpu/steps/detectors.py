"""Detectors and text readers: the engine against the reference executor, and its latency."""

from __future__ import annotations

import importlib.util
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.route_models import MODELS, save_model
from tests.gpu.networks import Bound, relative_rms
from tests.gpu.steps.vision import LIMIT
from tests.support.models import crowded_detector, save
from trtkit.config.load import load_config
from trtkit.config.schema import ModelConfig
from trtkit.runtime.model import open_model
from trtkit.verification.detections import partners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer
    from trtkit.arrays import Arrays
    from trtkit.bundle.bundle import Bundle

SCENE = Path(__file__).parents[3] / "examples" / "detr3d" / "scene.py"
TINY_DETR3D = {
    "image": [64, 112], "blocks": [1, 1, 2, 1], "width": 8, "hidden_size": 32, "num_attention_heads": 4,
    "decoder_layers": 2, "intermediate_size": 48, "num_queries": 60, "max_detections": 40,
}  # fmt: skip
MOST_UNPAIRED = 0.05


@dataclass(frozen=True)
class Detector:
    """config: from the place and a precision. size: of an image, (small, on a GPU).

    outputs: outputs to compare; empty for all. is_unordered: rows are paired first. precisions: used on a GPU.
    """

    config: Callable[[Place, str], ModelConfig]
    size: tuple[tuple[int, ...], tuple[int, ...]]
    outputs: tuple[str, ...] = ()
    is_unordered: bool = False
    precisions: tuple[str, ...] = ("fp32", "fp16")


def ask(place: Place, model: str) -> Iterator[Answer]:
    """Build, compare one image with the reference executor, and time it with a CUDA graph."""
    detector = DETECTORS[model]
    for precision in ("fp32",) if place.is_simulated else detector.precisions:
        started = time.perf_counter()
        bundle = place.bundle(f"{model}-{precision}", lambda: detector.config(place, precision))  # noqa: B023
        build_s = time.perf_counter() - started
        inputs = _inputs(place, detector, bundle)
        ours, theirs = (open_model(bundle, runtime).run(inputs) for runtime in ("tensorrt", "reference"))
        answer = _compared(detector, ours, theirs, LIMIT[precision])
        yield {"what": f"{model} in {precision}", **answer, "build_s": build_s}
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
        ms = Bound(place, bundle.engine_path(), tensors).median_ms()
        yield {"what": f"{model} in {precision}, batch 1", "latency_ms": ms, "images_per_s": 1e3 / ms}


def _compared(detector: Detector, ours: Arrays, theirs: Arrays, limit: float) -> Answer:
    """Return the largest error of any output; counts must be equal."""
    names = detector.outputs or tuple(theirs)
    counts = {name for name in names if theirs[name].dtype.kind in "iu"}
    are_equal = all(np.array_equal(ours[name], theirs[name]) for name in counts)
    floats = [{name: side[name] for name in names if name not in counts} for side in (ours, theirs)]
    unpaired = 0.0
    if detector.is_unordered:
        *floats, unpaired = partners(*floats, limit)
    error = max(relative_rms(*(torch.from_numpy(side[name]) for side in floats)) for name in floats[0])
    holds = are_equal and error < limit and unpaired <= MOST_UNPAIRED
    return {"holds": holds, "relative_rms_error": error, "unpaired_rows": unpaired}


def _inputs(place: Place, detector: Detector, bundle: Bundle) -> Arrays:
    random, size = np.random.default_rng(0), detector.size[0 if place.is_simulated else 1]
    name = bundle.manifest.inputs[0].name
    if bundle.manifest.name != "detr3d":
        return {name: random.standard_normal((1, 3, *size)).astype(np.float32)}
    images = random.normal(0, 50, (1, 6, 3, *size)).astype(np.float32)
    return {"images": images, "lidar2img": _scene().lidar2img(size)}


def _text(name: str) -> Callable[[Place, str], ModelConfig]:
    """Return the config function of a shipped text model, whose weights are in a package."""
    return lambda _place, precision: load_config(name, [f"precision={precision}"])


def _rt_detr(place: Place, precision: str) -> ModelConfig:
    name = "rt-detr-v2-tiny" if place.is_simulated else "rt-detr-v2-r50"
    folder = place.scratch / "models" / name
    if not (folder / "config.json").exists():
        save_model(name, folder)
    fields = {"source": {"hf": str(folder)}, "image_size": MODELS[name][3], "profiles": [{"batch": 1}]}
    return ModelConfig.model_validate({"name": name, "precision": precision, **fields})


def _yolo(place: Place, precision: str) -> ModelConfig:
    """Return a small network with YOLOv8's outputs, overlapping boxes, and NMS in the engine."""
    place.scratch.mkdir(parents=True, exist_ok=True)
    path = save(crowded_detector(), place.scratch / "crowded.onnx")
    boxes = {"layout": "channels-first", "nms": "engine", "min_score": 0.4, "max_iou": 0.3, "max_boxes": 40}
    fields = {"source": {"onnx": str(path)}, "profiles": [{"batch": 1}], "task": {"kind": "detection", "boxes": boxes}}
    return ModelConfig.model_validate({"name": "yolo", "precision": precision, **fields})


def _detr3d(place: Place, precision: str) -> ModelConfig:
    scene, folder = _scene(), place.scratch / "models" / "detr3d"
    if not (folder / "config.json").exists():
        scene.write_model(folder, TINY_DETR3D if place.is_simulated else scene.SMALL)
    fields = {"source": {"hf": str(folder)}, "profiles": [{"batch": 1}]}
    return ModelConfig.model_validate({"name": "detr3d", "precision": precision, **fields})


def _scene() -> Any:
    """Return the example's module, which generates a model and camera matrices."""
    spec = importlib.util.spec_from_file_location("detr3d_scene", SCENE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


DETECTORS = {
    "ppocr-det": Detector(_text("ppocr-det"), ((64, 64), (736, 736))),
    "ppocr-rec": Detector(_text("ppocr-rec"), ((48, 64), (48, 320))),
    "ppocr-cls": Detector(_text("ppocr-cls"), ((48, 192), (48, 192))),
    "yolo": Detector(_yolo, ((64, 64), (64, 64)), precisions=("fp32",)),
    "rt-detr-v2": Detector(_rt_detr, (MODELS["rt-detr-v2-tiny"][3], MODELS["rt-detr-v2-r50"][3]), is_unordered=True),
    "detr3d": Detector(_detr3d, ((64, 112), (128, 224)), ("logits", "codes")),
}
