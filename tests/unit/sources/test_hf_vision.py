from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trtkit.sources.hf_vision import folder_source

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
    ("architectures", "output"),
    [(["ViTForImageClassification"], "logits"), (["ViTModel"], "last_hidden_state"), (None, "last_hidden_state")],
)
def test_output_is_named_after_the_architecture(architectures: list[str] | None, output: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"image_size": 32, "architectures": architectures}))
    assert folder_source(tmp_path).outputs == (output,)
