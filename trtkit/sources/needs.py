"""What a config takes from elsewhere: packages with its files, a folder with its weights."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtkit.sources import package_file

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig

_DISTRIBUTION = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Requirement:
    """One package or folder.

    command: what brings it; empty if only the user knows where it comes from. hub: a folder's id on Hugging Face's hub.
    """

    kind: Literal["package", "folder"]
    name: str
    is_present: bool
    command: str
    hub: str = ""


def needs(config: ModelConfig) -> list[Requirement]:
    """Return what a config's source, labels and test images need, each once."""
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
    """Return the need of a model's folder; one without a `config.json` is not there yet."""
    command = download_command(hub, folder) if hub else ""
    return Requirement("folder", str(folder), (Path(folder) / "config.json").is_file(), command, hub)


def download_command(hub_id: str, folder: str | Path) -> str:
    """Return the command that downloads a model repository from Hugging Face's hub."""
    return shlex.join(["hf", "download", hub_id, "--local-dir", str(folder)])


def _package(requirement: str) -> Requirement:
    """Return a requirement of pip; any installed version will do."""
    name = _DISTRIBUTION.match(requirement)
    try:
        is_present = name is not None and importlib.metadata.distribution(name.group()) is not None
    except importlib.metadata.PackageNotFoundError:
        is_present = False
    return Requirement("package", requirement, is_present, package_file.install_line(requirement))
