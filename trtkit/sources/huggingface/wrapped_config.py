"""Extraction of the language model from a model with other parts around it (vision-language wrappers)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.sources.safetensors_file import read_json
from trtkit.sources.vision_language.load import whole_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.sources.checkpoint import StoredArray

# Wrappers' prefixes of the language model's weights -> its own prefix. The first match is used.
_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "lm_head.": "lm_head.",
    "model.": "model.",
}
_PARTS = {"text_config", "vision_config"}
# Parts of wrappers other than the language model, with or without the prefix `model.`.
_NAMES = """vision_tower vision_model visual audio_tower mtp multi_modal_projector connector embed_vision embed_audio"""
_OTHER_PARTS = tuple(f"{prefix}{name}." for name in _NAMES.split() for prefix in ("model.", ""))


# Fields that old wrappers wrote to their language model's config, about parts that no longer exist.
_LEFT_OVER = ("perceiver_config", "pixel_shuffle_factor")


def unwrap(path: Path, arrays: Mapping[str, StoredArray]) -> tuple[dict[str, Any], dict[str, StoredArray]]:
    """Return `text_fields` and the language model's arrays; all arrays if there are no other parts.

    path: the config.json. Raises SourceError if the wrapper uses unknown weight names, and for weights of none of its
    parts.
    """
    config, fields = read_json(path), text_fields(path)
    if not _PARTS & config.keys():
        return fields, dict(arrays)
    inner = {name: stored for full, stored in arrays.items() if (name := inner_name(full))}
    if "mtp_num_hidden_layers" in fields:  # modules that predict later tokens lie next to the language model
        inner |= {name: stored for name, stored in arrays.items() if name.startswith("mtp.")}
    if not inner:
        known = ", ".join(f"`{prefix}`" for prefix in _PREFIXES)
        what = f"no weights of the language model inside `{config.get('model_type')}` were found"
        raise SourceError(what, str(path), f"their names are to start with one of {known}")
    others = [name for name in arrays if inner_name(name) is None and not name.startswith(_OTHER_PARTS)]
    if others:
        what = f"{len(others)} weights belong to no known part of `{config.get('model_type')}`, such as `{others[0]}`"
        raise SourceError(what, str(path), "remove them if the model does not need them")
    return fields, inner


def text_fields(path: Path) -> dict[str, Any]:
    """Return the language model's fields of a config.json; all fields if it has no parts.

    A config that omits defaults, or mixes the language model's fields with the others', is completed by transformers.
    """
    config = read_json(path)
    if "hidden_size" not in (config.get("text_config") or {}) and "vision_config" in config:
        config = whole_config(path.parent)
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config
    outer = {name: config[name] for name in ("tie_word_embeddings", "dtype", "torch_dtype") if name in config}
    fields = {name: value for name, value in {**outer, **text}.items() if name not in _LEFT_OVER}
    # Depending on a file's age, it is in one of the two places, and `false` in the other.
    return {**fields, "tie_word_embeddings": True} if outer.get("tie_word_embeddings") else fields


def inner_name(name: str) -> str | None:
    """Return a weight's name in the language model alone, None for weights of other parts."""
    for prefix, inner in _PREFIXES.items():
        if name.startswith(prefix) and not name.startswith(_OTHER_PARTS):
            return inner + name.removeprefix(prefix)
    return None
