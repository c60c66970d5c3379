"""JSON form of jobs' requests and results, read back strictly by their types.

This avoids pydantic's TypeAdapter: importing pydantic would cost the build process 12 MiB and 0.1 s.
"""

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_Value = TypeVar("_Value")
Where = tuple["Where", str] | None
"""Where a value is: its container and its name in there."""
Reader = Callable[[object, Where], object]


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
    """Return the value of type `kind` that `to_json` wrote as `data`. Raises TypeError if the data has another type."""
    read = _reader(cast("Any", kind))
    return cast("_Value", read(data, (None, kind.__name__)))


@functools.cache
def _reader(kind: Any) -> Reader:
    """Return a function that reads values of a type."""
    origin = get_origin(kind) or kind
    if origin in _READERS:
        return _READERS[origin](kind)
    if dataclasses.is_dataclass(origin):
        return _dataclass(kind)
    if hasattr(origin, "model_validate"):
        return lambda data, _where: kind.model_validate(data)
    raise TypeError(f"{origin} has no JSON form")


def _wrong(kind: Any, data: object, where: Where) -> TypeError:
    return TypeError(f"{_text(where)}: expected {getattr(kind, '__name__', kind)}, got {str(data)[:100]!r}")


def _text(where: Where) -> str:
    return "" if where is None else _text(where[0]) + where[1]


def _union(kind: Any) -> Reader:
    """Return a reader that returns the value of the first matching member type."""
    members = get_args(kind)
    classes = [member for member in members if dataclasses.is_dataclass(member)]

    def read(data: object, where: Where) -> object:
        for member in members:
            try:
                return _reader(member)(data, where)
            except (TypeError, ValueError):
                continue
        if classes and isinstance(data, dict):
            nearest: Any = max(classes, key=lambda member: len(_names(member) & set(data)))
            _reader(nearest)(data, where)  # raises the error of the wrong field
        raise _wrong(kind, data, where)

    return read


_HINTS: dict[type, dict[str, object]] = {}


def read_hints(kind: type, names: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the types of a dataclass's fields. names: types that its module imports only for type checking."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind, localns=dict(names or {}))
    return _HINTS[kind]


def _names(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _dataclass(kind: Any) -> Reader:
    """Return a reader for a dataclass; the data must have exactly its fields."""
    names = _names(kind)

    def read(data: object, where: Where) -> object:
        if not isinstance(data, dict):
            raise _wrong(kind, data, where)
        if data.keys() != names:
            kinds = {"missing": names - data.keys(), "unknown": data.keys() - names}
            what, wrong = next((what, sorted(wrong)) for what, wrong in kinds.items() if wrong)
            raise TypeError(f"{_text(where)}: `{wrong[0]}` is {what}")
        hints = read_hints(kind)
        return kind(**{name: _reader(hints[name])(value, (where, f".{name}")) for name, value in data.items()})

    return read


def _scalar(kind: Any) -> Reader:
    def read(data: object, where: Where) -> object:
        if type(data) is kind:
            return data
        if kind is float and type(data) is int:
            return float(data)
        raise _wrong(kind, data, where)

    return read


def _path(kind: Any) -> Reader:
    def read(data: object, where: Where) -> Path:
        if isinstance(data, str):
            return Path(data)
        raise _wrong(kind, data, where)

    return read


def _same(kind: Any) -> Reader:
    """Return a reader for the values of a Literal, or None."""
    values = get_args(kind) or (None,)

    def read(data: object, where: Where) -> object:
        if any(data == value and type(data) is type(value) for value in values):
            return data
        raise _wrong(kind, data, where)

    return read


def _mapping(kind: Any) -> Reader:
    item = _reader((get_args(kind) or (Any, Any))[1])

    def read(data: object, where: Where) -> dict[str, object]:
        if not isinstance(data, dict):
            raise _wrong(kind, data, where)
        return {key: item(value, (where, f".{key}")) for key, value in data.items()}

    return read


def _list(kind: Any) -> Callable[[object, Where], list[object]]:
    item = _reader(get_args(kind)[0])

    def read(data: object, where: Where) -> list[object]:
        if not isinstance(data, list):
            raise _wrong(kind, data, where)
        return [item(value, (where, f"[{index}]")) for index, value in enumerate(data)]

    return read


def _tuple(kind: Any) -> Reader:
    kinds = get_args(kind)
    if kinds[1:] == (Ellipsis,):
        items = _list(kind)
        return lambda data, where: tuple(items(data, where))
    readers = [_reader(item) for item in kinds]

    def read(data: object, where: Where) -> tuple[object, ...]:
        if not isinstance(data, list) or len(readers) != len(data):
            raise _wrong(kind, data, where)
        pairs = enumerate(zip(readers, data, strict=True))
        return tuple(reader(value, (where, f"[{index}]")) for index, (reader, value) in pairs)

    return read


def _anything(_kind: Any) -> Reader:
    return lambda data, _where: data


_READERS: dict[Any, Callable[[Any], Reader]] = {
    Any: _anything,
    **dict.fromkeys((Union, types.UnionType), _union),
    **dict.fromkeys((Literal, None, type(None)), _same),
    **dict.fromkeys((str, int, float, bool), _scalar),
    **dict.fromkeys((dict, Mapping), _mapping),
    **dict.fromkeys((list, Sequence), _list),
    tuple: _tuple,
    Path: _path,
}
