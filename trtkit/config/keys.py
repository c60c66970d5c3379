"""All keys of a config, as `--set` names them."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator


def key_paths(model: type[BaseModel]) -> Iterator[str]:
    """Yield every key that takes a value, such as `llm.max_batch_size`; of mappings and lists, their own key."""
    for name, field in model.model_fields.items():
        nested = model_in(field.annotation)
        if nested is None:
            yield name
        else:
            yield from (f"{name}.{key}" for key in key_paths(nested))


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field holds, itself or None; no model of a list's or a mapping's."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in {list, tuple, dict}:
        return None
    models = (model_in(argument) for argument in typing.get_args(annotation))
    return next((model for model in models if model is not None), None)
