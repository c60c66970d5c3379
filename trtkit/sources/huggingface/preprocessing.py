"""A transformers vision folder's preprocessing, the task of its outputs, and its class names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trtkit.config.task import Boxes, Preprocess, Resize, Task
from trtkit.errors import SourceError
from trtkit.sources import package_file
from trtkit.sources.safetensors_file import json_object

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.arrays import HeightWidth
    from trtkit.config.schema import ModelConfig

Fields = dict[str, Any]
"""The content of a JSON file."""
FILE = "preprocessor_config.json"
# Processors that do no more than Preprocess: resize, crop, scale, normalize. For others the config defines it.
_PLAIN = {
    "Beit", "Bit", "CLIP", "ConvNext", "DPT", "DeiT", "MobileNetV1", "MobileNetV2", "MobileViT", "Pvt", "RTDetr",
    "Segformer", "Siglip", "ViT",
}  # fmt: skip
_FILTERS = {2: "bilinear", 3: "bicubic"}
_SUFFIXES = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
# Functions from query logits to scores, as in each family's image processor.
_SCORES = {
    "detr": "softmax", "yolos": "softmax", "table-transformer": "softmax", "conditional_detr": "sigmoid",
    "dab-detr": "sigmoid", "deformable_detr": "sigmoid", "rt_detr": "sigmoid", "rt_detr_v2": "sigmoid",
    "d_fine": "sigmoid",
}  # fmt: skip


def folder_preprocess(folder: Path, image_size: HeightWidth) -> Preprocess | None:
    """Return the folder's preprocessing; None if it has no image processor, or one beyond Preprocess.

    image_size: (height, width) of the engine, which must match the processor's pictures.
    """
    data = json_object(folder / FILE)
    name = str(data.get("image_processor_type") or data.get("feature_extractor_type") or "")
    family = next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), "")
    resize, crop = _sizes(data, family)
    filter_name = _FILTERS.get(data.get("resample", 2))
    if family not in _PLAIN or resize is None or filter_name is None or data.get("do_pad") or _keeps_aspect(data):
        return None
    if (crop or resize.exact) != image_size:
        return None
    is_normal = data.get("do_normalize", family != "MobileViT")
    return Preprocess.model_validate(
        {
            "channels": "bgr" if data.get("do_flip_channel_order", family == "MobileViT") else "rgb",
            "resize": resize,
            "crop": crop,
            "filter": filter_name,
            "scale": data.get("rescale_factor", 1 / 255) if data.get("do_rescale", True) else 1.0,
            **({"mean": data.get("image_mean"), "std": data.get("image_std")} if is_normal else {}),
        }
    )


def folder_task(fields: Fields) -> Task | None:
    """Return the task of a folder with these config.json fields; None if its head has none."""
    names = fields.get("architectures") or [""]
    head = str(names[0]).partition("For")[2].removesuffix("WithTeacher")
    if head == "ObjectDetection":
        scores = _SCORES.get(str(fields.get("model_type")))
        return (
            None if scores is None else Task(kind="detection", boxes=Boxes(layout="queries", scores=scores, max_iou=1))
        )
    kinds = {
        "ImageClassification": "classification",
        "SemanticSegmentation": "segmentation",
        "DepthEstimation": "depth",
    }
    if head not in kinds:
        return None
    # Users who need agreement of answers for the verdict set it in a config: random weights have near ties.
    lenient = {"min_agreement": 0.0} if head == "ImageClassification" else {}
    return Task.model_validate({"kind": kinds[head], **lenient})


def folder_labels(fields: Fields) -> tuple[str, ...]:
    """Return the class names in `id2label`; empty if they are transformers' defaults, LABEL_0 and so on."""
    labels = fields.get("id2label")
    if not isinstance(labels, dict) or sorted(labels, key=str) != sorted(map(str, range(len(labels))), key=str):
        return ()
    names = tuple(str(labels[str(index)]) for index in range(len(labels)))
    return () if names == tuple(f"LABEL_{index}" for index in range(len(names))) else names


def _sizes(data: Fields, family: str) -> tuple[Resize | None, tuple[int, int] | None]:
    """Return resize and center crop; no resize if it cannot be expressed."""
    size = data.get("size")
    crop = _pair(data.get("crop_size")) if data.get("do_center_crop", family in _CROPPED) else None
    if not data.get("do_resize", True) or not isinstance(size, dict):
        return None, crop
    if size.keys() == {"height", "width"}:
        return Resize(exact=(size["height"], size["width"])), crop
    if size.keys() != {"shortest_edge"}:
        return None, crop
    edge = size["shortest_edge"]
    if family != "ConvNext":
        return Resize(shortest_edge=edge), crop
    if edge >= _CONVNEXT_WARPED:
        return Resize(exact=(edge, edge)), None
    return Resize(shortest_edge=int(edge / data.get("crop_pct", 0.875))), (edge, edge)


_CROPPED = {"Bit", "CLIP", "DeiT", "MobileNetV1", "MobileNetV2", "MobileViT"}
_CONVNEXT_WARPED = 384
"""From this edge length on, ConvNextImageProcessor scales both sides and does not crop."""


def _pair(size: object) -> tuple[int, int] | None:
    if isinstance(size, dict) and size.keys() == {"height", "width"}:
        return size["height"], size["width"]
    return (size, size) if isinstance(size, int) else None


def _keeps_aspect(data: Fields) -> bool:
    """Whether a depth model's processor derives the size from the picture, or rounds it."""
    size, unit = data.get("size"), data.get("ensure_multiple_of", 1)
    is_rounded = isinstance(size, dict) and any(isinstance(edge, int) and edge % unit for edge in size.values())
    return bool(data.get("keep_aspect_ratio")) or is_rounded


_LABELS = "give a JSON list of names, or a text file with a name a line, in the order of the classes"


def config_labels(config: ModelConfig) -> tuple[str, ...]:
    """Return a model's class names from `task.labels` or `id2label`; empty if neither defines them.

    Raises SourceError if `task.labels` cannot be read.
    """
    task = config.task
    if task is None or task.kind not in {"classification", "detection", "segmentation"}:
        return ()
    if task.labels is not None:
        return tuple(read_labels(package_file.resolve(task.labels, task.requires)))
    if config.source.hf is None:
        return ()
    return folder_labels(json_object(package_file.hf_folder(config.source) / "config.json"))


def read_labels(path: Path) -> list[str]:
    """Return the class names in a file: a JSON list, or one per line. Raises SourceError if it contains none."""
    try:
        text = path.read_text(encoding="utf-8")
        labels = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be read: {error}", str(path), _LABELS) from None
    if not isinstance(labels, list) or not labels or not all(isinstance(name, str) for name in labels):
        raise SourceError("holds no list of names", str(path), _LABELS)
    return labels
