"""Plants mistakes into a module's source."""

from __future__ import annotations

import importlib
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def planted(module_name: str, text: str, mistake: str) -> Iterator[None]:
    """Change a module's source while it is loaded; modules that hold its classes and functions see it too."""
    module = importlib.import_module(module_name)
    source = inspect.getsource(module)
    assert text in source, f"{module_name} has changed: plant the mistake elsewhere"
    changed: dict[str, Any] = {**vars(module)}
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module_name]
    exec(compile(source.replace(text, mistake), module.__file__ or "", "exec"), changed)
    undo = []
    for value in own:
        if inspect.isfunction(value):
            undo.append((value, "__code__", value.__code__))
            value.__code__ = changed[value.__name__].__code__
        for key, member in vars(value).items() if isinstance(value, type) else ():
            if inspect.isfunction(member):
                undo.append((value, key, member))
    for value, key, _ in undo:
        if isinstance(value, type):
            setattr(value, key, vars(changed[value.__name__])[key])
    try:
        yield
    finally:
        for value, key, member in undo:
            setattr(value, key, member)


def is_seen(mistake: tuple[str, str, str], run: Callable[[], object], expected: object) -> bool:
    """Whether a run answers otherwise than expected with a mistake planted; an error shows it too."""
    with planted(*mistake):
        try:
            return run() != expected
        except Exception:
            return True
