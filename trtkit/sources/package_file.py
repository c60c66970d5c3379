"""Files inside installed packages: `package://module/path/in/package`."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from trtkit.config.schema import Source

SCHEME = "package://"


def resolve(path: str, requires: str | None = None) -> Path:
    """Return the file that `path` names, without importing its package.

    requires: what pip installs to provide it, named in the error. Raises SourceError if there is no such file.
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
    """Return the folder of a `source.hf`, in a package or not; whoever reads a folder says whether it is there."""
    assert source.hf is not None
    return resolve(source.hf, source.requires) if source.hf.startswith(SCHEME) else Path(source.hf)


def install_line(requires: str | None) -> str:
    """Return the command that installs what a config requires, quoted for a shell; empty if it requires nothing."""
    return f"pip install --no-deps {shlex.join(requires.split())}" if requires else ""


def _existing(path: Path) -> Path:
    """Return `path`. Raises SourceError if it is not a readable file or folder."""
    if not path.exists():
        beside = path.parent.glob(f"*{path.suffix}") if path.parent.is_dir() else ()
        nearby = sorted(entry.name for entry in beside if not entry.name.startswith("."))
        fix = f"files there: {', '.join(nearby[:8])}" if nearby else "check the path"
        raise SourceError("no such file", str(path), fix)
    return path
