from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trtkit.errors import SourceError
from trtkit.sources.huggingface.vision import folder_source

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("config", "processor", "shape"),
    [
        ({"image_size": 32}, None, ("batch", 3, 32, 32)),
        ({"image_size": [32, 48], "num_channels": 1}, None, ("batch", 1, 32, 48)),
        ({}, {"crop_size": {"height": 24, "width": 40}, "size": {"shortest_edge": 64}}, ("batch", 3, 24, 40)),
        ({}, {"size": {"shortest_edge": 64}}, ("batch", 3, 64, 64)),
    ],
)
def test_input_size_is_the_models_else_the_processors(
    config: dict[str, Any], processor: dict[str, Any] | None, shape: tuple[int | str, ...], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    assert folder_source(tmp_path).inputs["pixel_values"].shape == shape


@pytest.mark.parametrize(
    ("architecture", "outputs"),
    [
        ("ViTForImageClassification", ("logits",)),
        ("LevitForImageClassificationWithTeacher", ("logits",)),
        ("RTDetrForObjectDetection", ("logits", "pred_boxes")),
        ("SegformerForSemanticSegmentation", ("logits",)),
        ("Mask2FormerForUniversalSegmentation", ("class_queries_logits", "masks_queries_logits")),
        ("MaskFormerForInstanceSegmentation", ("class_queries_logits", "masks_queries_logits")),
        ("GLPNForDepthEstimation", ("predicted_depth",)),
        ("Swin2SRForImageSuperResolution", ("reconstruction",)),
        ("Mask2FormerModel", ("last_hidden_state",)),
        (None, ("last_hidden_state",)),
    ],
)
def test_outputs_are_those_of_the_architectures_head(
    architecture: str | None, outputs: tuple[str, ...], tmp_path: Path
) -> None:
    named = {"architectures": [architecture]} if architecture else {}
    (tmp_path / "config.json").write_text(json.dumps({"image_size": 32, **named}))
    assert folder_source(tmp_path).outputs == outputs


def test_a_head_that_is_not_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"image_size": 32, "architectures": ["ViTForMaskedImageModeling"]})
    )
    with pytest.raises(SourceError, match="the head of `ViTForMaskedImageModeling` is not known") as refused:
        folder_source(tmp_path)
    assert "SemanticSegmentation" in refused.value.fix
