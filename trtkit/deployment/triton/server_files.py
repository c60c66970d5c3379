"""A tritonserver on this machine: its program, its backends, and what its Python backend needs to run trtkit."""

import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import DeployError

VARIABLE = "TRTKIT_TRITON_SERVER"
# `find_server` searches where `make triton` and this command install it.
INSTALL = "pip install --no-deps --target {folder} nvidia-pytriton==0.7.0 numpy==1.26.4"
_BINARY, _WHEEL_ROOT, _STUB = "tritonserver", Path("pytriton/tritonserver"), "triton_python_backend_stub"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_CONTAINER = Path("/opt/tritonserver/bin/tritonserver")


@dataclass(frozen=True)
class ServerFiles:
    """A tritonserver. origin: where it was found, as text. root: the folder with its `backends`.

    wheel: the folder that nvidia-pytriton was installed into, None for other servers; a wheel has its shared libraries
    next to it, one stub for each version of Python, and none of its backends is complete.
    """

    binary: Path
    origin: str
    root: Path
    wheel: Path | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of its backends, by library or Python file, and `ensemble`, which is built in."""
        folders = sorted((self.root / "backends").glob("*"))
        files = [(folder.name, (f"libtriton_{folder.name}.so", "model.py")) for folder in folders]
        there = [
            name for name, known in files if any((self.root / "backends" / name / file).is_file() for file in known)
        ]
        return ("ensemble", *there)

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Folders of shared libraries to add to the loader's path."""
        return () if self.wheel is None else (self.wheel / "nvidia_pytriton.libs",)

    @property
    def caches(self) -> Path | None:
        folder = self.root / "caches"
        return folder if folder.is_dir() else None

    @property
    def overlay(self) -> Path | None:
        """The folder with the NumPy 1 that a wheel's stubs were compiled against, None if there is none."""
        if self.wheel is None:
            return None
        version = self.wheel / "numpy" / "version.py"
        is_old = version.is_file() and re.search(r"""version = ["']1\.""", version.read_text(encoding="utf-8"))
        return self.wheel if is_old else None

    @property
    def warning(self) -> str | None:
        """What will not work with this server, None if everything does."""
        if self.wheel is None or self.overlay is not None:
            return None
        folder = Path(sys.prefix) / "triton-server"
        quoted = shlex.quote(str(folder))
        fix = f"`{INSTALL.format(folder=quoted)}` creates one that does, for `--server {quoted}`"
        return f"this server's Python was made for NumPy 1, and text crashes it with NumPy 2; {fix}"

    def write_backends(self, folder: Path) -> Path | None:
        """Fill `folder` with a Python backend for the running Python, if the server has no complete one.

        Returns None if its own backends suffice. Raises DeployError if it has no stub for this Python.
        """
        if self.wheel is None:
            return None
        stub = self.root / "python_backend_stubs" / _PYTHON / _STUB
        if not stub.is_file():
            have = ", ".join(sorted(path.name for path in stub.parents[1].glob("*"))) or "none"
            what = f"the server has no Python stub for Python {_PYTHON}; it has {have}"
            raise DeployError(what, str(self.root), "run trtkit with one of these, or serve from a container")
        python = folder / "python"
        shutil.copytree(self.root / "backends" / "python", python, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(stub, python / _STUB)
        return folder

    def environment(self) -> dict[str, str]:
        """Return the environment of the server, including the caller's own variables.

        TRTKIT_SITE lets model.py import this Python's packages if the server's Python is the same; TRTKIT_OVERLAY
        precedes it.
        """
        variables = dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"}
        folders = [str(path) for path in (*self.libraries, *_own_library())]
        old = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, *([old] if old else [])])
        if self.wheel is not None or _python_of(self.root / "backends" / "python" / _STUB) == _PYTHON:
            paths = dict.fromkeys(sysconfig.get_paths()[key] for key in ("purelib", "platlib"))
            variables["TRTKIT_SITE"] = os.pathsep.join(paths)
        if self.overlay is not None:
            variables["TRTKIT_OVERLAY"] = str(self.overlay)
        return variables


def find_server(server: str | None = None, environment: Mapping[str, str] = os.environ) -> ServerFiles:
    """Return the tritonserver to start. server: a program, or the folder of a server.

    Raises DeployError, with instructions to get one, if `server` is not a server or this machine has none.
    """
    chosen = server or environment.get(VARIABLE)
    if chosen:
        where = "--server" if server else VARIABLE
        files = _open(Path(chosen), where)
        if files is None:
            what = f"`{chosen}` is neither a tritonserver nor a folder with one"
            raise DeployError(what, where, "give the program, or the folder with `nvidia-pytriton`")
        return files
    for path, words in _usual_places():
        if (files := _open(path, words)) is not None:
            return files
    folder = Path(sys.prefix) / "triton-server"
    raise DeployError("no tritonserver on this machine", fix=f"`{INSTALL.format(folder=shlex.quote(str(folder)))}`")


def _usual_places() -> Iterator[tuple[Path, str]]:
    on_path = shutil.which(_BINARY)
    if on_path is not None:
        yield Path(on_path), "on PATH"
    yield _CONTAINER, "of NVIDIA's container"
    yield Path(sysconfig.get_paths()["purelib"]), "of the installed nvidia-pytriton"
    yield Path(sys.prefix) / "triton-server", "in the environment's `triton-server`"


def _open(path: Path, words: str) -> ServerFiles | None:
    """Return the server at `path`, a program or a folder; None if it is not one."""
    candidates = [path] if path.is_file() else [path / _WHEEL_ROOT / "bin" / _BINARY, path / "bin" / _BINARY]
    for binary in candidates:
        if binary.is_file() and os.access(binary, os.X_OK):
            root = binary.resolve().parent.parent
            is_wheel = root.parts[-2:] == _WHEEL_ROOT.parts
            return ServerFiles(binary.resolve(), words, root, root.parents[1] if is_wheel else None)
    return None


def _own_library() -> list[Path]:
    """Return the folder of this Python's own shared library, which stubs load, unless it is a system folder."""
    folder, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    is_there = folder and name and (Path(folder) / name).is_file()
    return [Path(folder)] if is_there and not folder.startswith(("/usr/lib", "/lib")) else []


def _python_of(stub: Path) -> str | None:
    """Return the version of Python that a stub is linked with, such as `3.12`."""
    match = re.search(rb"libpython(3\.\d+)", stub.read_bytes()) if stub.is_file() else None
    return match.group(1).decode() if match else None
