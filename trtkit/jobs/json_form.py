"""Requests and results of jobs as JSON and back, strictly by their types.

Not pydantic's TypeAdapter: importing pydantic takes 12 MiB and 0.1 s, which the process that builds an engine spares.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_Value = TypeVar("_Value")
Reader = Callable[[Any, object, str], object]


def to_json(value: object) -> Any:
    """Return a value of dataclasses, pydantic models, paths, tuples, lists, mappings and scalars as JSON data."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [to_json(item) for item in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def from_json(kind: type[_Value], data: object) -> _Value:
    """Return the value of type `kind` that `to_json` made `data` of. Raises TypeError where the data is of another."""
    return cast("_Value", _read(kind, data, kind.__name__))


def _read(kind: Any, data: object, where: str) -> object:
    return _reader(get_origin(kind) or kind)(kind, data, where)


def _reader(origin: Any) -> Reader:
    """Return the function that reads values of a type. origin: the type without its arguments."""
    if origin in _READERS:
        return _READERS[origin]
    if dataclasses.is_dataclass(origin):
        return _dataclass
    if hasattr(origin, "model_validate"):
        return lambda kind, data, _where: kind.model_validate(data)
    raise TypeError(f"{origin} has no JSON form")


def _wrong(kind: Any, data: object, where: str) -> TypeError:
    return TypeError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {str(data)[:100]!r}")


def _union(kind: Any, data: object, where: str) -> object:
    """Return the value of the first type that the data is of."""
    for member in get_args(kind):
        try:
            return _read(member, data, where)
        except (TypeError, ValueError):
            continue
    classes = [member for member in get_args(kind) if dataclasses.is_dataclass(member)]
    if classes and isinstance(data, dict):
        _read(
            max(classes, key=lambda member: len(_names(member) & set(data))), data, where
        )  # says which field is wrong
    raise _wrong(kind, data, where)


_HINTS: dict[type, dict[str, object]] = {}


def read_hints(kind: type, names: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the types of a dataclass's fields. names: of types that its module imports for type checkers only."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind, localns=dict(names or {}))
    return _HINTS[kind]


def _names(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _dataclass(kind: Any, data: object, where: str) -> object:
    """Return a dataclass whose fields are exactly those of the data."""
    if not isinstance(data, dict):
        raise _wrong(kind, data, where)
    names = _names(kind)
    if missing := sorted(names - set(data)):
        raise TypeError(f"{where}: `{missing[0]}` is missing")
    if unknown := sorted(set(data) - names):
        raise TypeError(f"{where}: `{unknown[0]}` is unknown")
    hints = read_hints(kind)
    return kind(**{name: _read(hints[name], data[name], f"{where}.{name}") for name in names})


def _scalar(kind: Any, data: object, where: str) -> object:
    if kind is float and type(data) is int:
        return float(data)
    if type(data) is kind:
        return data
    raise _wrong(kind, data, where)


def _path(kind: Any, data: object, where: str) -> Path:
    if isinstance(data, str):
        return Path(data)
    raise _wrong(kind, data, where)


def _same(kind: Any, data: object, where: str) -> object:
    """Return one of a Literal's values, or None."""
    if any(data == value and type(data) is type(value) for value in get_args(kind) or (None,)):
        return data
    raise _wrong(kind, data, where)


def _mapping(kind: Any, data: object, where: str) -> dict[str, object]:
    if not isinstance(data, dict):
        raise _wrong(kind, data, where)
    item = (get_args(kind) or (Any, Any))[1]
    return {key: _read(item, value, f"{where}.{key}") for key, value in data.items()}


def _list(kind: Any, data: object, where: str) -> list[object]:
    if not isinstance(data, list):
        raise _wrong(kind, data, where)
    item = get_args(kind)[0]
    return [_read(item, value, f"{where}[{index}]") for index, value in enumerate(data)]


def _tuple(kind: Any, data: object, where: str) -> tuple[object, ...]:
    items = get_args(kind)
    if items[1:] == (Ellipsis,):
        return tuple(_list(kind, data, where))
    if not isinstance(data, list) or len(items) != len(data):
        raise _wrong(kind, data, where)
    return tuple(
        _read(item, value, f"{where}[{index}]") for index, (item, value) in enumerate(zip(items, data, strict=True))
    )


def _anything(_kind: Any, data: object, _where: str) -> object:
    return data


_READERS: dict[Any, Reader] = {
    Any: _anything,
    **dict.fromkeys((Union, types.UnionType), _union),
    **dict.fromkeys((Literal, None, type(None)), _same),
    **dict.fromkeys((str, int, float, bool), _scalar),
    **dict.fromkeys((dict, Mapping), _mapping),
    **dict.fromkeys((list, Sequence), _list),
    tuple: _tuple,
    Path: _path,
}
