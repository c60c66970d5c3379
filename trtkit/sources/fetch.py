"""External requirements of a config: pip packages, and model folders (downloaded by `hub.py`)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtkit.errors import SourceError
from trtkit.sources import package_file
from trtkit.sources.hub import download_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.config.schema import ModelConfig


def install_packages(requirements: Sequence[str]) -> None:
    """Install packages without their dependencies in this environment. Raises SourceError."""
    fix = package_file.install_line(" ".join(requirements))
    options = [requirement for requirement in requirements if requirement.startswith("-")]
    if options:
        what = f"`requires` must list packages only; got the option `{options[0]}`"
        raise SourceError(what, fix=f"remove `{options[0]}`")
    done = subprocess.run([*_installer(), "--no-deps", *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        errors = [line for line in lines if line.lower().startswith("error")] or lines
        raise SourceError(f"pip failed: {errors[-1].removeprefix('ERROR: ')}", ", ".join(requirements), fix)
    importlib.invalidate_caches()


def _installer() -> list[str]:
    """Return pip's install command for this Python; uv's if the environment has no pip."""
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip") is None and uv is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check"]


_DISTRIBUTION = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Requirement:
    """One required package or folder.

    command: how to obtain it; empty if only the user knows its origin. hub: a folder's id on Hugging Face's hub.
    """

    kind: Literal["package", "folder"]
    name: str
    is_present: bool
    command: str
    hub: str = ""


def needs(config: ModelConfig) -> list[Requirement]:
    """Return the distinct requirements of a config's source, labels and test images."""
    sections = (config.source, config.task, config.verify)
    requirements = [word for section in sections if section is not None for word in (section.requires or "").split()]
    packages = [_package(requirement) for requirement in dict.fromkeys(requirements)]
    folder = config.source.hf or config.source.trtllm
    if folder is None:
        return packages
    if folder.startswith(package_file.SCHEME):
        return packages
    return [*packages, folder_need(folder, config.source.hub or "")]


def folder_need(folder: str | Path, hub: str = "") -> Requirement:
    """Return the requirement of a model's folder; without a `config.json` it counts as missing."""
    command = download_command(hub, folder) if hub else ""
    return Requirement("folder", str(folder), (Path(folder) / "config.json").is_file(), command, hub)


def _package(requirement: str) -> Requirement:
    """Return a pip requirement; any installed version satisfies it."""
    name = _DISTRIBUTION.match(requirement)
    try:
        is_present = name is not None and importlib.metadata.distribution(name.group()) is not None
    except importlib.metadata.PackageNotFoundError:
        is_present = False
    return Requirement("package", requirement, is_present, package_file.install_line(requirement))
