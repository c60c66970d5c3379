"""Files inside installed packages, `package://module/path/in/package`, and the module of a `source.torch` factory."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from trtkit.config.schema import Source

SCHEME = "package://"


def resolve(path: str, requires: str | None = None) -> Path:
    """Return the file that `path` names, without importing its package.

    requires: the pip requirements that provide it, named in the error. Raises SourceError if there is no such file.
    """
    if not path.startswith(SCHEME):
        return _existing(Path(path))
    module, _, inner = path.removeprefix(SCHEME).partition("/")
    if not module.isidentifier() or not inner or ".." in Path(inner).parts:
        raise SourceError(f"`{path}` is not of the form `package://module/path`", fix="name a module and a file in it")
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        install = install_line(requires) or f"install the package that has `{module}`"
        raise SourceError(f"package `{module}` is not installed", path, install)
    return _existing(Path(next(iter(spec.submodule_search_locations))) / inner)


def hf_folder(source: Source) -> Path:
    """Return the folder of a `source.hf`, in a package or not; readers of the folder check that it exists."""
    assert source.hf is not None
    return resolve(source.hf, source.requires) if source.hf.startswith(SCHEME) else Path(source.hf)


def install_line(requires: str | None) -> str:
    """Return the command that installs a config's requirements, quoted for a shell; empty if there are none."""
    return f"pip install --no-deps {shlex.join(requires.split())}" if requires else ""


def _existing(path: Path) -> Path:
    """Return `path`. Raises SourceError if it is not a readable file or folder."""
    if not path.exists():
        beside = path.parent.glob(f"*{path.suffix}") if path.parent.is_dir() else ()
        nearby = sorted(entry.name for entry in beside if not entry.name.startswith("."))
        fix = f"files there: {', '.join(nearby[:8])}" if nearby else "check the path"
        raise SourceError("no such file", str(path), fix)
    return path


def add_folder_of(module: str) -> None:
    """Append the current folder to sys.path if `module` is not installed, so that a factory there is found."""
    top, here = module.partition(".")[0], str(Path.cwd())
    if _installed(top) is None and here not in sys.path:
        sys.path.append(here)


def find_module(name: str) -> ModuleSpec | None:
    """Return the spec of `package.module` without importing anything, not even its packages; None if not found."""
    top, *rest = name.split(".")
    spec = _installed(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec


def _installed(top: str) -> ModuleSpec | None:
    """Return the spec of a top-level module that Python can import without changes."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
