"""Names of a package that are imported when they are first used, so that nobody waits for what they do not need."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def lazy_names(
    package: str, names: Mapping[str, Iterable[str]], prepare: Callable[[], None] = lambda: None
) -> Callable[[str], object]:
    """Return a package's `__getattr__`. names: by the module that has them. prepare: called before an import."""
    modules = {name: module for module, held in names.items() for name in held}

    def get(name: str) -> object:
        import importlib

        if name not in modules:
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        prepare()
        return getattr(importlib.import_module(modules[name]), name)

    return get
