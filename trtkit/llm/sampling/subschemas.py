"""Which part of a JSON schema is at fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not")
_SHARED = ("$defs", "definitions")
_MOST_READ = 256 * 1024  # characters of parts that are compiled to find a fault: about a second


def place_of_fault(schema: Mapping[str, Any], message: str, fault: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the JSON pointer of the innermost part that alone has the fault `message`; `#` is the whole schema.

    fault: the message that a schema is refused with, empty for a right one. A large schema is not searched to its end.
    """
    shared = {key: schema[key] for key in _SHARED if key in schema}
    left = _MOST_READ
    try:
        for pointer, part in _innermost_first(schema, "#"):
            whole = {**shared, **part}
            left -= len(json.dumps(whole))
            if left < 0:
                break
            if pointer != "#" and fault(whole) == message:
                return pointer
    except RecursionError:
        pass  # nested so deeply that only the whole can be named
    return "#"


def _innermost_first(schema: Any, pointer: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(schema, Mapping):
        return
    for key, part in _parts(schema):
        yield from _innermost_first(part, f"{pointer}/{key}")
    yield pointer, schema


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            yield from ((f"{key}/{name}", part) for name, part in value.items())
        elif key in _LISTED and isinstance(value, list):
            yield from ((f"{key}/{index}", part) for index, part in enumerate(value))
        elif key in _SINGLE:
            yield key, value
