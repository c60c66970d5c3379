"""Write a config as YAML whose comments say what each key means."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import yaml

from trtkit.config.overrides import model_in
from trtkit.config.schema import ModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import BaseModel

_WIDTH = 100


def commented_yaml(data: Mapping[str, object], notes: Mapping[str, str]) -> str:
    """Return `data` as YAML, each key below its description. notes: more about a key, by its dotted path."""
    return "\n".join(_lines(data, ModelConfig, "", notes)) + "\n"


def comment(text: str, indent: str = "") -> list[str]:
    """Return a text as lines of a comment."""
    start = f"{indent}# "
    return textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False)


def _lines(data: Mapping[str, object], model: type[BaseModel], path: str, notes: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of one mapping. path: dotted keys above it, with a dot at the end."""
    indent = "  " * path.count(".")
    for key, value in data.items():
        field = model.model_fields[key]
        yield from comment(" ".join(filter(None, (field.description, notes.get(path + key)))), indent)
        below = model_in(field.annotation)
        if below is not None and isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, below, f"{path}{key}.", notes)
        else:
            yield from (indent + line for line in _dumped({key: value}, is_flat=not isinstance(value, dict | list)))


def _dumped(entry: Mapping[str, object], *, is_flat: bool) -> list[str]:
    """Return one key and its value as YAML; lists and mappings of plain values on one line."""
    style = False if is_flat else None
    text = yaml.safe_dump(dict(entry), sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=style)
    return text.splitlines()
