"""Folders saved by transformers answer pictures as transformers does, with their preprocessing, task and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from trtkit import build, open_model
from trtkit.runtime.tasks.answers import Classes, ClassMap

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ["ant", "bee", "cat", "dog", "elk"]
LABELS = {"id2label": dict(enumerate(NAMES)), "label2id": {name: index for index, name in enumerate(NAMES)}}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def picture() -> Image.Image:
    coarse = np.random.default_rng(3).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((90, 60), Image.Resampling.BILINEAR)


def saved(model: Any, processor: Any, folder: Path) -> Path:
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def vit(folder: Path) -> tuple[Any, Any]:
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8, **LABELS)
    model = transformers.ViTForImageClassification(config)
    processor = transformers.ViTImageProcessorPil(size={"height": 32, "width": 32})
    saved(model, processor, folder)
    return model, processor


@pytest.mark.parametrize("route", ["onnx", "hybrid"])
def test_a_classifier_names_its_classes(route: str, tmp_path: Path) -> None:
    model, processor = vit(tmp_path / "vit")
    source = {"hf": str(tmp_path / "vit")}
    (tmp_path / "vit.yaml").write_text(f"name: vit\nroute: {route}\nsource: {{hf: {source['hf']}}}\n")
    bundle = build(tmp_path / "vit.yaml", tmp_path / "bundle")
    (answer,) = open_model(bundle).predict([picture()])
    with torch.inference_mode():
        theirs = model(**processor(picture(), return_tensors="pt")).logits[0].softmax(-1)
    assert isinstance(answer, Classes)
    assert answer.labels == tuple(NAMES[index] for index in answer.ids)
    assert answer.ids == tuple(theirs.argsort(descending=True).tolist())
    assert answer.scores == pytest.approx(theirs.sort(descending=True).values.tolist(), abs=1e-5)


def test_a_map_of_classes_is_that_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"depths": [1, 1], "hidden_sizes": [8, 16], "decoder_hidden_size": 16, "num_encoder_blocks": 2}
    heads = {"num_attention_heads": [1, 2], "sr_ratios": [4, 1]}
    config = transformers.SegformerConfig(**sizes, **heads, image_size=64, **LABELS)
    model = transformers.SegformerForSemanticSegmentation(config)
    processor = transformers.SegformerImageProcessorPil(size={"height": 64, "width": 64})
    folder = saved(model, processor, tmp_path / "segformer")
    (tmp_path / "m.yaml").write_text(f"name: m\nsource: {{hf: {folder}}}\nimage_size: [64, 64]\n")
    (answer,) = open_model(build(tmp_path / "m.yaml", tmp_path / "bundle")).predict([picture()])
    with torch.inference_mode():
        outputs = model(**processor(picture(), return_tensors="pt"))
    (theirs,) = processor.post_process_semantic_segmentation(outputs, [(60, 90)])
    assert isinstance(answer, ClassMap)
    assert answer.labels == tuple(NAMES)
    assert (answer.ids == theirs.numpy()).mean() > 0.99


def test_what_a_config_says_wins(tmp_path: Path) -> None:
    vit(tmp_path / "vit")
    own = "preprocess: {resize: {letterbox: [32, 32]}}\ntask: {kind: classification, min_agreement: 1.0}\n"
    (tmp_path / "vit.yaml").write_text(f"name: vit\nsource: {{hf: {tmp_path / 'vit'}}}\n{own}")
    config = build(tmp_path / "vit.yaml", tmp_path / "bundle").manifest.config
    assert config.preprocess is not None
    assert config.preprocess.resize is not None
    assert config.preprocess.resize.letterbox == (32, 32)
    assert config.task is not None
    assert config.task.min_agreement == 1.0
