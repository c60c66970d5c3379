"""Vision models of the kit, with seeded weights, generated on the machine that measures them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.models import classifier, save
from trtkit.config.load import config_for_source

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import ModelConfig

PROFILES = "profiles=[{batch: {min: 1, opt: 2, max: 4}}, {batch: {min: 5, opt: 6, max: 8}}]"


def classifier_config(folder: Path, precision: str = "fp32") -> ModelConfig:
    """Return the config of a tiny classifier for batches of 1 to 4, and of 5 to 8 in a second profile."""
    folder.mkdir(parents=True, exist_ok=True)
    path = save(classifier(), folder / "classifier.onnx")
    return config_for_source("onnx", path, [PROFILES, f"precision={precision}"])
