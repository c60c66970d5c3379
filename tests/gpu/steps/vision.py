"""Vision models of published sizes: the engine against the reference executor; its latency and torch's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.route_models import MODELS
from benchmarks.route_models import save_model as save_detector
from benchmarks.vision_models import save_model as save_classifier
from tests.gpu.networks import Bound, relative_rms
from trtkit.config.schema import ModelConfig
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer
    from trtkit.bundle.bundle import Bundle

CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet-50": ("ResNetForImageClassification", {"image_size": 224, "num_labels": 1000}),
    "mobilenet-v2": ("MobileNetV2ForImageClassification", {"image_size": 224}),
    "resnet-tiny": (
        "ResNetForImageClassification",
        {"image_size": 32, "embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1]},
    ),
}
SMALL = {"vit-base": "vit-tiny", "resnet-50": "resnet-tiny", "mobilenet-v2": "resnet-tiny", "detr-r50": "detr-tiny"}
LIMIT = {"fp32": 2e-3, "fp16": 3e-2}


def ask(place: Place, model: str, has_batches: bool = True) -> Iterator[Answer]:
    """Build in fp32 and fp16, compare one image with the reference executor, time batches with a CUDA graph."""
    name = SMALL[model] if place.is_simulated else model
    for precision in ("fp16",) if place.is_simulated else ("fp16", "fp32"):
        started = time.perf_counter()
        bundle = place.bundle(f"{name}-{precision}", lambda: _config(place, name, precision, has_batches))  # noqa: B023
        build_s = time.perf_counter() - started
        shape = tuple(bundle.manifest.inputs[0].shape)
        error = _error(bundle, (1, *shape[1:]))
        yield {
            "what": f"{name} in {precision}",
            "holds": error < LIMIT[precision],
            "relative_rms_error": error,
            "build_s": build_s,
        }
        for batch in (1, 8) if has_batches else (1,):
            yield _latency(place, bundle, (batch, *shape[1:])) | {"what": f"{name} in {precision}, batch {batch}"}
    yield from _torch(place, name, (8 if has_batches else 1, *shape[1:]))


def _config(place: Place, name: str, precision: str, has_batches: bool) -> ModelConfig:
    folder = place.scratch / "models" / name
    if not (folder / "config.json").exists():
        if name in MODELS:
            save_detector(name, folder)
        else:
            save_classifier(*CLASSIFIERS[name], folder)
    size = MODELS[name][3] if name in MODELS else (CLASSIFIERS[name][1]["image_size"],) * 2
    profiles = [{"batch": [1, 8, 8] if has_batches else 1}]
    fields = {"source": {"hf": str(folder)}, "precision": precision, "image_size": size, "profiles": profiles}
    return ModelConfig.model_validate({"name": "m", **fields})


def _error(bundle: Bundle, shape: tuple[int, ...]) -> float:
    """Return the largest relative RMS error of any output against the reference executor."""
    pixels = {bundle.manifest.inputs[0].name: torch.randn(shape, generator=torch.Generator().manual_seed(0)).numpy()}
    ours, theirs = open_model(bundle, "tensorrt").run(pixels), open_model(bundle, "reference").run(pixels)
    return max(relative_rms(torch.from_numpy(ours[name]), torch.from_numpy(value)) for name, value in theirs.items())


def _latency(place: Place, bundle: Bundle, shape: tuple[int, ...]) -> Answer:
    ms = Bound(place, bundle.engine_path(), {bundle.manifest.inputs[0].name: torch.randn(shape)}).median_ms()
    return {"latency_ms": ms, "images_per_s": shape[0] / ms * 1e3}


def _torch(place: Place, name: str, shape: tuple[int, ...]) -> Iterator[Answer]:
    """Time the same model in transformers in fp16, eager and compiled."""
    import transformers

    architecture = MODELS[name][1] if name in MODELS else CLASSIFIERS[name][0]
    dtype = torch.float32 if place.is_simulated else torch.float16
    model = getattr(transformers, architecture).from_pretrained(place.scratch / "models" / name)
    model = model.to(place.torch_device, dtype).eval()
    pixels = torch.randn(shape, device=place.torch_device, dtype=dtype)
    forms = {"transformers": model}
    if not place.is_simulated:
        forms["torch.compile"] = torch.compile(model, mode="reduce-overhead")
    with torch.inference_mode():
        for form, run in forms.items():
            ms = place.median_ms(lambda: run(pixel_values=pixels))  # noqa: B023
            yield {"what": f"{form}, fp16, batch {shape[0]}", "latency_ms": ms, "images_per_s": shape[0] / ms * 1e3}
