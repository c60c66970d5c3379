"""What a folder's image processor does, against that processor; and what its outputs say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import transformers
from PIL import Image

from trtkit.inputs.images import image_input
from trtkit.sources.huggingface.preprocessing import folder_labels, folder_preprocess, folder_task

if TYPE_CHECKING:
    from pathlib import Path

# Family, arguments, and the (height, width) that the engine has.
PLAIN: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
    ("ViT", {}, (224, 224)),
    ("ViT", {"size": {"height": 96, "width": 128}, "resample": 3, "do_normalize": False}, (96, 128)),
    ("ViT", {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3}, (224, 224)),
    ("DeiT", {}, (224, 224)),
    ("MobileNetV1", {}, (224, 224)),
    ("MobileNetV2", {}, (224, 224)),
    ("MobileViT", {}, (256, 256)),
    ("Bit", {}, (224, 224)),
    ("CLIP", {}, (224, 224)),
    ("Siglip", {}, (224, 224)),
    ("Segformer", {}, (512, 512)),
    ("Beit", {}, (224, 224)),
    ("ConvNext", {}, (384, 384)),
    ("ConvNext", {"size": {"shortest_edge": 224}}, (224, 224)),
    ("Pvt", {}, (224, 224)),
    ("DPT", {}, (384, 384)),
    ("RTDetr", {}, (640, 640)),
]


def saved(family: str, arguments: dict[str, Any], folder: Path) -> Any:
    processor = getattr(transformers, f"{family}ImageProcessorPil")(**arguments)
    processor.save_pretrained(folder)
    return processor


@pytest.mark.parametrize(("family", "arguments", "size"), PLAIN)
@pytest.mark.parametrize("shape", [(300, 450), (500, 260)])
def test_pictures_become_what_the_processor_makes(
    family: str, arguments: dict[str, Any], size: tuple[int, int], shape: tuple[int, int], tmp_path: Path
) -> None:
    processor = saved(family, arguments, tmp_path)
    preprocess = folder_preprocess(tmp_path, size)
    assert preprocess is not None
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((shape[1], shape[0]))
    theirs = processor(picture, return_tensors="np")["pixel_values"]
    ours = image_input(picture, preprocess)
    assert ours.shape == theirs.shape
    scale = float(np.abs(theirs).max())
    assert np.abs(ours - theirs).max() <= 1.01 / 255 / 0.2 * max(1.0, scale / 3)
    assert np.abs(ours - theirs).mean() <= 2e-3 * max(1.0, scale)


@pytest.mark.parametrize(
    ("family", "arguments", "size"),
    [
        ("Detr", {}, (800, 800)),
        ("Yolos", {}, (512, 512)),
        ("Levit", {}, (224, 224)),
        ("PoolFormer", {}, (224, 224)),
        ("EfficientNet", {}, (346, 346)),
        ("GLPN", {}, (224, 224)),
        ("ViT", {}, (384, 384)),
        ("ViT", {"resample": 0}, (224, 224)),
        ("ViT", {"do_resize": False}, (224, 224)),
        ("DPT", {"keep_aspect_ratio": True, "ensure_multiple_of": 32}, (384, 384)),
        ("Bit", {"do_center_crop": False}, (224, 224)),
    ],
)
def test_a_processor_that_does_more_or_makes_another_size_is_not_guessed(
    family: str, arguments: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    saved(family, arguments, tmp_path)
    assert folder_preprocess(tmp_path, size) is None


def test_a_folder_without_a_processor_says_nothing(tmp_path: Path) -> None:
    assert folder_preprocess(tmp_path, (224, 224)) is None
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "OwnImageProcessor"}))
    assert folder_preprocess(tmp_path, (224, 224)) is None


@pytest.mark.parametrize(
    ("architecture", "model_type", "kind"),
    [
        ("ViTForImageClassification", "vit", "classification"),
        ("DeiTForImageClassificationWithTeacher", "deit", "classification"),
        ("SegformerForSemanticSegmentation", "segformer", "segmentation"),
        ("DPTForDepthEstimation", "dpt", "depth"),
        ("RTDetrForObjectDetection", "rt_detr", "detection"),
        ("NewForObjectDetection", "new", None),
        ("MaskFormerForInstanceSegmentation", "maskformer", None),
        ("ViTModel", "vit", None),
    ],
)
def test_the_task_follows_from_the_head(architecture: str, model_type: str, kind: str | None) -> None:
    task = folder_task({"architectures": [architecture], "model_type": model_type})
    assert (None if task is None else task.kind) == kind


def test_names_of_classes_that_transformers_made_up_are_none() -> None:
    assert folder_labels({"id2label": {"1": "dog", "0": "cat"}}) == ("cat", "dog")
    assert folder_labels({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}) == ()
    assert folder_labels({"id2label": {"1": "dog"}}) == ()
    assert folder_labels({}) == ()
