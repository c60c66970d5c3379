"""Finds a vision-language family's module by its config's `model_type`."""

import importlib
from types import ModuleType

from trtkit.errors import SourceError, reading
from trtkit.models.vision_language.spec import Fields, ImageTraits, VisionLimits, VisionSpec

# `model_type` -> module in `trtkit.models.vision_language`.
VISION_LANGUAGE = {
    "gemma3": "gemma3",
    "idefics3": "idefics3",
    "internvl": "internvl",
    "llava": "llava",
    "qwen2_5_vl": "qwen2_vl",
    "qwen2_vl": "qwen2_vl",
    "qwen3_5": "qwen3_vl",
    "qwen3_5_moe": "qwen3_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "smolvlm": "idefics3",
}


def vision_spec(fields: Fields, limits: VisionLimits, where: str = "config.json") -> VisionSpec:
    """Return the vision tower that a complete config.json describes, defaults of its parts included.

    Raises SourceError for an unknown `model_type` and for unsupported settings.
    """
    model_type = str(fields.get("model_type"))
    if model_type not in VISION_LANGUAGE:
        known = f"known: {', '.join(VISION_LANGUAGE)}"
        raise SourceError(f"`{model_type}` is not a vision-language family", where, known)
    spec: VisionSpec = _family(model_type).spec(fields, limits, where)
    return spec


def image_traits(fields: Fields, where: str = "config.json") -> ImageTraits:
    """Return what a vision-language model's images require of its language model. fields: of its config.json.

    Raises SourceError for malformed fields.
    """
    find = getattr(_family(str(fields["model_type"])), "traits", None)
    with reading(where):
        traits: ImageTraits = ImageTraits() if find is None else find(fields)
    return traits


def _family(model_type: str) -> ModuleType:
    return importlib.import_module(f"trtkit.models.vision_language.{VISION_LANGUAGE[model_type]}")
