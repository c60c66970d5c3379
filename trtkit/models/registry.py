"""Find a family by its config's `model_type`."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.models.hf_config import HfConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.models.spec import DecoderSpec

# `model_type` -> module in `trtkit.models.decoders`.
FAMILIES = {
    "llama": "llama",
}


def decoder_spec(fields: Mapping[str, Any], where: str = "config.json") -> DecoderSpec:
    """Return the model that a `config.json` describes.

    Raises SourceError for an unknown `model_type`, and for fields that are missing, unknown or not supported.
    """
    config = HfConfig(fields, where)
    model_type = str(config.need("model_type"))
    if model_type not in FAMILIES:
        near = difflib.get_close_matches(model_type, FAMILIES, n=3)
        known = "did you mean " + " or ".join(f"`{name}`" for name in near) if near else "known are " + _listed()
        raise SourceError(f"unknown `model_type` `{model_type}`", where, known)
    config.refuse("quantization_config")
    module = importlib.import_module(f"trtkit.models.decoders.{FAMILIES[model_type]}")
    spec: DecoderSpec = module.spec(config)
    config.check_all_read()
    return spec


def _listed() -> str:
    return ", ".join(sorted(FAMILIES))
