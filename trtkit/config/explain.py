"""Convert pydantic's validation errors to errors in the terms of a config's user."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from trtkit.errors import Problem, choices

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from trtkit.config.yaml_file import KeyPath

Where = Callable[["KeyPath"], str]
_NESTED = re.compile(r"valid dictionary or instance of \w+")


def explain(
    error: ValidationError, model: type[BaseModel], where: Where, shown_by: str = "trtkit config schema"
) -> list[Problem]:
    """Convert each error to a Problem that names key, line, allowed values and the nearest known key.

    shown_by: the command that shows all keys; if empty, the Problem lists them.
    """
    problems = []
    for detail in error.errors(include_url=False):
        key_path = tuple(part for part in detail["loc"] if not _is_union_tag(part))
        what, fix = _message(detail, model, key_path, shown_by)
        problems.append(Problem(what, where(key_path), fix))
    return list(dict.fromkeys(problems))


def _is_union_tag(part: str | int) -> bool:
    """Whether a path component is the name of a union's member, which pydantic adds."""
    return isinstance(part, str) and ("[" in part or part in {"DimRange", "ShapeRange", "int", "str"})


def _message(detail: ErrorDetails, model: type[BaseModel], key_path: KeyPath, shown_by: str) -> tuple[str, str]:
    key = ".".join(str(part) for part in key_path)
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown_key(model, key_path, shown_by)
    if kind == "missing":
        return f"key `{key}` is missing", f"add `{key}:`"
    if kind == "literal_error":
        return f"{key}: {detail['input']!r} is not allowed", f"use one of {detail['ctx']['expected']}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("tuple", "list")
    message = message[0].lower() + message[1:].partition(", unable to parse")[0]
    message = _NESTED.sub("mapping of keys", message)
    if kind == "value_error":
        return f"{key}: {message}" if key else message, ""
    return f"{key}: {detail['input']!r} {message}", ""


def _unknown_key(model: type[BaseModel], key_path: KeyPath, shown_by: str) -> tuple[str, str]:
    """Return a problem text and a fix for an unknown key, with similar keys, and all keys if they are few."""
    parent = _model_at(model, key_path[:-1])
    known = sorted(parent.model_fields) if parent else []
    key = str(key_path[-1])
    at = ".".join(str(part) for part in key_path[:-1])
    what = f"unknown key `{key}`" + (f" in `{at}`" if at else "")
    return what, choices(key, known, shown_by) if known else ""


def _model_at(model: type[BaseModel], key_path: KeyPath) -> type[BaseModel] | None:
    """Return the model class at `key_path` below `model`."""
    current: Any = model
    for part in key_path:
        fields = {name: field.annotation for model in _models(current) for name, field in model.model_fields.items()}
        if part in fields:
            current = fields[str(part)]
        else:
            arguments = [arg for member in _members(current) for arg in typing.get_args(member)]
            current = arguments[-1] if arguments else None
    return next(iter(_models(current)), None)


def _models(annotation: object) -> list[type[BaseModel]]:
    """Return the model classes among a union's members."""
    members = (member for member in _members(annotation) if isinstance(member, type))
    return [member for member in members if issubclass(member, BaseModel)]


def _members(annotation: Any) -> list[Any]:
    """Return a union's members, or the annotation alone."""
    if typing.get_origin(annotation) is typing.Union or type(annotation).__name__ == "UnionType":
        return [member for member in typing.get_args(annotation) if member is not type(None)]
    return [annotation]
