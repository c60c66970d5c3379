"""Finds a hybrid family's module by its config's `model_type`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError, reading
from trtkit.models.hf_config import FIX, HfConfig
from trtkit.models.hybrids.spec import check_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.hybrids.spec import HybridSpec
    from trtkit.pooling import Pooling

# `model_type` -> module in `trtkit.models.hybrids`.
HYBRIDS = {
    "bert": "bert",
    "camembert": "bert",
    "detr3d": "detr3d",
    "detr": "detr",
    "dinov2": "dinov2",
    "dinov2_with_registers": "dinov2",
    "distilbert": "distilbert",
    "modernbert": "modernbert",
    "roberta": "bert",
    "rt_detr": "rt_detr",
    "rt_detr_v2": "rt_detr",
    "siglip_vision_model": "siglip_vision",
    "vit": "vit",
    "xlm-roberta": "bert",
}
TEXT_ENCODERS = {"bert", "camembert", "distilbert", "modernbert", "roberta", "xlm-roberta"}
"""Families whose input is text."""


@dataclass(frozen=True)
class HybridOptions:
    """Choices of the user's config or of the model's folder that are not in config.json.

    image_size: (height, width); None for the model's own. pooling: that of a sentence-transformers folder, if any.
    """

    image_size: tuple[int, int] | None = None
    pooling: Pooling | None = None


def hybrid_spec(
    fields: Mapping[str, Any], where: str = "config.json", options: HybridOptions | None = None
) -> HybridSpec:
    """Return the hybrid that a `config.json` describes, its seams checked.

    Raises SourceError for an unknown `model_type`, and for missing, unknown or unsupported fields.
    """
    model_type = str(HfConfig(fields, where).need("model_type"))
    if model_type not in HYBRIDS:
        known = f"known: {', '.join(sorted(HYBRIDS))}"
        raise SourceError(f"`{model_type}` is not a hybrid family", where, f"{known}; or use `route: onnx`")
    family = importlib.import_module(f"trtkit.models.hybrids.{HYBRIDS[model_type]}")
    config = HfConfig(fields, where, getattr(family, "ALIASES", None), getattr(family, "DEFAULTS", None))
    config.refuse("quantization_config")
    for name in getattr(family, "IMMATERIAL", ()):
        config.get(name)
    with reading(where, FIX):
        spec: HybridSpec = family.spec(config, options or HybridOptions())
        config.check_all_read()
        return check_spec(spec)
