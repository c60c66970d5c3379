"""The module that a `source.torch` factory lives in: among the installed packages, else in the current folder."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def add_folder_of(module: str) -> None:
    """Put the current folder last on sys.path if `module` is not installed, so that a factory there is found."""
    top, here = module.partition(".")[0], str(Path.cwd())
    if _installed(top) is None and here not in sys.path:
        sys.path.append(here)


def find_module(name: str) -> ModuleSpec | None:
    """Return the spec of `package.module` without importing anything, its packages included; None if not found."""
    top, *rest = name.split(".")
    spec = _installed(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec


def _installed(top: str) -> ModuleSpec | None:
    """Return the spec of a top-level module that Python can import as it is."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
