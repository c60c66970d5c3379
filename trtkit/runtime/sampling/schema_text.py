"""Reading what guides an answer: a JSON schema, an expression, a grammar. Guides compile them later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

ANY_OBJECT = {"type": "object"}


def read_json(value: Any) -> Any:
    """Return a schema as an object; True and {} are any JSON object."""
    if value is None:
        return None
    if isinstance(value, str):
        value = _parse(value)
    if value is True or value == {}:
        return dict(ANY_OBJECT)
    if not isinstance(value, Mapping):
        raise ValueError(f"`{value!r}` is not a JSON schema")
    _check_json(value)
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the schema is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None


def _check_json(value: Any) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from None


def read_grammar(value: Any) -> str | None:
    """Return text that is not empty."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ValueError(f"`{value!r}` is not a text of at least one character")
    return value
