"""Reading what guides an answer: a JSON schema, an expression, a grammar. Guides compile them later."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from trtkit.runtime.text.limits import (
    MAX_GRAMMAR_LENGTH,
    MAX_MULTIPLE,
    MAX_SCHEMA_LENGTH,
    check_count,
    check_text,
    shown,
)

_MULTIPLE = re.compile(r"""["']multipleof["']\s*:\s*([0-9.]+(?:e[+-]?[0-9]+)?)""")
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
ANY_OBJECT = {"type": "object"}


def read_json(value: Any) -> Any:
    """Return a schema as an object; True and {} are any JSON object."""
    if value is None:
        return None
    if isinstance(value, str):
        _check_text(value, MAX_SCHEMA_LENGTH)
        value = _parse(value)
    if value is True or value == {}:
        return dict(ANY_OBJECT)
    if not isinstance(value, Mapping):
        raise ValueError(f"`{shown(value)}` is not a JSON schema")
    _check_json(value)
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the schema is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None


def _check_json(value: Any) -> None:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from None
    _check_text(text, MAX_SCHEMA_LENGTH)


def _check_text(text: str, limit: int) -> None:
    """Raise ValueError for a guide that would take too long to compile."""
    check_count(len(text), limit, "characters")
    check_text(text)
    plain = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), text)
    digits = [match.partition("e")[0].replace(".", "").strip("0") for match in _MULTIPLE.findall(plain.lower())]
    multiple = math.lcm(*(int(digit) for digit in digits if digit))
    if multiple > MAX_MULTIPLE:
        what = f"`multipleOf` with a least common multiple of {shown(multiple)}"
        raise ValueError(f"{what} is above the limit, {MAX_MULTIPLE}, zeros at its ends not counted")


def read_grammar(value: Any) -> str | None:
    """Return text that is not empty."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ValueError(f"`{shown(value)}` is not a non-empty text")
    if value is not None:
        _check_text(value, MAX_GRAMMAR_LENGTH)
    return value
