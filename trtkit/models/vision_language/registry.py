"""Find a vision-language family by its config's `model_type`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from trtkit.models.vision_language.spec import Fields, VisionLimits, VisionSpec

# `model_type` -> module in `trtkit.models.vision_language`.
VISION_LANGUAGE = {
    "idefics3": "idefics3",
    "internvl": "internvl",
    "llava": "llava",
    "qwen2_5_vl": "qwen2_vl",
    "qwen2_vl": "qwen2_vl",
    "smolvlm": "idefics3",
}


def vision_spec(fields: Fields, limits: VisionLimits, where: str = "config.json") -> VisionSpec:
    """Return the vision tower that a whole config describes, all fields of its parts stated.

    Raises SourceError for an unknown `model_type` and for what a family does not support.
    """
    model_type = str(fields.get("model_type"))
    if model_type not in VISION_LANGUAGE:
        known = f"known: {', '.join(VISION_LANGUAGE)}"
        raise SourceError(f"`{model_type}` is not a vision-language family", where, known)
    family = importlib.import_module(f"trtkit.models.vision_language.{VISION_LANGUAGE[model_type]}")
    spec: VisionSpec = family.spec(fields, limits, where)
    return spec
