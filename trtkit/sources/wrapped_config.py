"""Take the language model out of a model that has other parts around it (vision-language wrappers)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.sources.checkpoint import StoredArray

# Where wrappers keep the language model's weights -> the name that it has alone. The first that fits is taken.
_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "lm_head.": "lm_head.",
    "model.": "model.",
}
# What stands below `model.` beside the language model.
_OTHER_PARTS = tuple(
    f"model.{name}." for name in ("vision_tower", "vision_model", "visual", "multi_modal_projector", "connector")
)


def unwrap(
    config: dict[str, Any], arrays: Mapping[str, StoredArray], where: str
) -> tuple[dict[str, Any], dict[str, StoredArray]]:
    """Return config and arrays of the language model; both as they are where the config has no `text_config`.

    Raises SourceError where the wrapper names its language model's weights in a way that is not known.
    """
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config, dict(arrays)
    outer = {name: config[name] for name in ("tie_word_embeddings", "dtype", "torch_dtype") if name in config}
    inner = {name: stored for full, stored in arrays.items() if (name := _inner_name(full))}
    if not inner:
        known = ", ".join(f"`{prefix}`" for prefix in _PREFIXES)
        what = f"no weights of the language model inside `{config.get('model_type')}` were found"
        raise SourceError(what, where, f"their names are to start with one of {known}")
    # Files of different ages say it at one of the two places, and `false` at the other.
    is_tied = {"tie_word_embeddings": True} if outer.get("tie_word_embeddings") else {}
    return {**outer, **text, **is_tied}, inner


def _inner_name(name: str) -> str | None:
    """Return the name that a weight has in the language model alone, None for weights of other parts."""
    for prefix, inner in _PREFIXES.items():
        if name.startswith(prefix) and not name.startswith(_OTHER_PARTS):
            return inner + name.removeprefix(prefix)
    return None
