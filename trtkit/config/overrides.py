"""Apply `--set key.path=value` to a config's data."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import yaml

from trtkit.config.schema import SOURCE_KINDS
from trtkit.errors import ConfigError, Problem

if TYPE_CHECKING:
    from trtkit.config.yaml_file import KeyPath


def parse_override(text: str) -> tuple[KeyPath, Any]:
    """Split `key.path=value`; digits are list indices, the value is YAML."""
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise _error(text, "an override is `key.path=value`, such as `precision=fp16`")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise _error(text, f"the value is not valid YAML: {error}") from None
    return tuple(int(part) if part.isdigit() else part for part in key.split(".")), value


def apply_override(data: dict[str, Any], key_path: KeyPath, value: Any, text: str) -> None:
    """Set `value` at `key_path`, making mappings on the way where there are none."""
    parent: Any = data
    for part, following in itertools.pairwise(key_path):
        parent = _step_into(parent, part, following, text)
    if isinstance(parent, dict) and len(key_path) == 2 and key_path[0] == "source" and key_path[1] in SOURCE_KINDS:
        for kind in (*SOURCE_KINDS, "requires"):  # a model has one kind of source
            parent.pop(kind, None)
    _put(parent, key_path[-1], value, text)


def _put(parent: Any, key: str | int, value: Any, text: str) -> None:
    """Set one entry of a mapping or a list."""
    if isinstance(parent, dict):
        parent[str(key)] = value
    elif isinstance(parent, list) and isinstance(key, int) and key <= len(parent):
        parent[key : key + 1] = [value]
    elif isinstance(parent, list):
        raise _error(text, f"`{key}` is no index of a list of {len(parent)}")
    else:
        raise _error(text, f"`{key}` is below a value that has no keys")


def _step_into(parent: Any, part: str | int, following: str | int, text: str) -> Any:
    """Return the child `part`, made where it is missing: a list where an index follows, else a mapping."""
    made: Any = [] if isinstance(following, int) else {}
    if isinstance(parent, dict):
        if parent.get(str(part)) is None:
            parent[str(part)] = made
        return parent[str(part)]
    if isinstance(parent, list) and isinstance(part, int) and part <= len(parent):
        if part == len(parent):
            parent.append(made)
        return parent[part]
    raise _error(text, f"`{part}` is neither a key nor an index there")


def _error(text: str, what: str) -> ConfigError:
    return ConfigError("invalid override", [Problem(what, f"--set {text}")])
