"""Override keys of a config: `--set key.path=value` of commands, keyword arguments of the Python API."""

from __future__ import annotations

import itertools
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

from trtkit.config.schema import SOURCE_KINDS
from trtkit.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.config.yaml_file import KeyPath


@dataclass(frozen=True)
class Override:
    """A key's new value. origin: the option or argument that sets it, for messages."""

    key_path: KeyPath
    value: Any
    origin: str

    def apply(self, data: dict[str, Any]) -> None:
        """Set the value in `data`. Raises ConfigError if the key does not fit."""
        apply_override(data, self.key_path, self.value, self.origin)


def read_overrides(overrides: Sequence[str | Override]) -> list[Override]:
    """Return parsed overrides from texts of `--set`. Raises ConfigError."""
    return [
        item if isinstance(item, Override) else Override(*parse_override(item), f"--set {item}") for item in overrides
    ]


def keyword_overrides(keys: Mapping[str, object]) -> tuple[Override, ...]:
    """Return the overrides for keyword arguments.

    A name may contain dots (`llm.logits`). A mapping sets only the keys that it contains; an empty one, like any other
    value, replaces the old value.
    """
    return tuple(override for name, value in keys.items() for override in _nested(_key_path(name), value))


def _nested(key_path: KeyPath, value: object) -> Iterator[Override]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _nested((*key_path, key), inner)
        return
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value
    yield Override(key_path, plain, f"{'.'.join(map(str, key_path))}={plain!r}")


def parse_override(text: str) -> tuple[KeyPath, Any]:
    """Split `key.path=value`; digits are list indices, the value is parsed as YAML."""
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise _error(f"--set {text}", "an override is `key.path=value`, such as `precision=fp16`")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise _error(f"--set {text}", f"the value is not valid YAML: {error}") from None
    return _key_path(key), value


def _key_path(key: str) -> KeyPath:
    """Split a dotted key; digits are list indices."""
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def apply_override(data: dict[str, Any], key_path: KeyPath, value: Any, origin: str) -> None:
    """Set `value` at `key_path`, creating missing containers on the way."""
    parent: Any = data
    for part, following in itertools.pairwise(key_path):
        parent = _step_into(parent, part, following, origin)
    if isinstance(parent, dict) and len(key_path) == 2 and key_path[0] == "source" and key_path[1] in SOURCE_KINDS:
        for kind in (*SOURCE_KINDS, "requires", "hub"):  # a model has one kind of source
            parent.pop(kind, None)
    _put(parent, key_path[-1], value, origin)


def _put(parent: Any, key: str | int, value: Any, origin: str) -> None:
    """Set one entry of a mapping or list."""
    if isinstance(parent, dict):
        parent[str(key)] = value
    elif isinstance(parent, list) and isinstance(key, int) and key <= len(parent):
        parent[key : key + 1] = [value]
    elif isinstance(parent, list):
        raise _error(origin, f"index `{key}` is out of range: the list has {len(parent)}")
    else:
        raise _error(origin, f"cannot set `{key}`: its parent is a plain value")


def _step_into(parent: Any, part: str | int, following: str | int, origin: str) -> Any:
    """Return the child `part`, created if missing: a list if an index follows, else a mapping."""
    child: Any = [] if isinstance(following, int) else {}
    if isinstance(parent, dict):
        if parent.get(str(part)) is None:
            parent[str(part)] = child
        return parent[str(part)]
    if isinstance(parent, list) and isinstance(part, int) and part <= len(parent):
        if part == len(parent):
            parent.append(child)
        return parent[part]
    raise _error(origin, f"`{part}` is neither a key nor an index there")


def _error(origin: str, what: str) -> ConfigError:
    return ConfigError("invalid override", [Problem(what, origin)])


def key_paths(model: type[BaseModel]) -> Iterator[str]:
    """Yield every key that takes a value, such as `llm.max_batch_size`; a mapping or list only as one key."""
    for name, field in model.model_fields.items():
        nested = model_in(field.annotation)
        if nested is None:
            yield name
        else:
            yield from (f"{name}.{key}" for key in key_paths(nested))


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model class of a field, optional or not; None for others, including lists and mappings of models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in {list, tuple, dict}:
        return None
    models = (model_in(argument) for argument in typing.get_args(annotation))
    return next((model for model in models if model is not None), None)
