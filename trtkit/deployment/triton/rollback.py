"""Rollback to an earlier version of a deployed model: its config.pbtxt is replaced; its files are still present."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.deployment.triton.model_config import config_text, read_config, versions
from trtkit.deployment.triton.repository import CONFIG, DEPLOYMENT, refuse_links, writing
from trtkit.errors import DeployError
from trtkit.files import read_text

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class RolledBack:
    """A model that was rolled back. before: the versions that it served."""

    model: str
    version: int
    before: tuple[int, ...]


@dataclass(frozen=True)
class _Record:
    """A version's deployment.json. config: config.pbtxt without the versions. deployed: all versions, by model."""

    config: str
    deployed: dict[str, int]


def roll_back(repository: Path, name: str, version: int | None = None) -> list[RolledBack]:
    """Serve an earlier version of a model, and what was deployed with it. Returns the changed models.

    version: None for the newest before those that are served. Every new config.pbtxt is written before any goes live.
    Raises DeployError for a model or version that does not exist or was deployed without the data for a rollback.
    """
    with writing(repository):
        folder = _model_folder(repository, name)
        record = _record(folder, version or _version_before(folder))
        changes = [_change(_model_folder(repository, model), number) for model, number in record.deployed.items()]
        written = []
        for folder, changed, config in changes:
            partial = folder / f".{CONFIG}.partial"
            partial.write_text(config, encoding="utf-8")
            written.append((partial, folder / CONFIG, changed))
        for partial, path, _ in written:
            partial.replace(path)
    return [changed for _, _, changed in written]


def _model_folder(repository: Path, name: str) -> Path:
    """Return a model's folder. Raises DeployError."""
    known = sorted(path.parent.name for path in repository.glob(f"*/{CONFIG}"))
    if name not in known:
        raise DeployError(
            f"no model is called `{name}`", str(repository), f"models there: {', '.join(known) or 'none'}"
        )
    refuse_links(repository / name)
    return repository / name


def _served(folder: Path) -> tuple[int, ...]:
    """Return the versions that config.pbtxt names."""
    config = read_config(read_text(folder / CONFIG), str(folder / CONFIG))
    return tuple(config.version_policy.specific.versions)


def _version_before(folder: Path) -> int:
    """Return the newest version older than all served ones. Raises DeployError if there is none."""
    served = _served(folder)
    there = sorted(int(path.parent.name) for path in folder.glob(f"*/{DEPLOYMENT}") if path.parent.name.isdecimal())
    older = [number for number in there if number < min(served, default=0)]
    if not older:
        what = f"no version is older than the served one, {', '.join(map(str, served)) or 'none'}"
        raise DeployError(what, str(folder), f"versions there: {', '.join(map(str, there))}")
    return older[-1]


def _record(folder: Path, version: int) -> _Record:
    """Return the record of a version's deployment. Raises DeployError."""
    path = folder / str(version) / DEPLOYMENT
    if not path.is_file():
        there = sorted(int(path.parent.name) for path in folder.glob(f"*/{DEPLOYMENT}"))
        what = f"there is no version {version} that trtkit deployed"
        raise DeployError(what, str(folder), f"versions there: {', '.join(map(str, there)) or 'none'}")
    record = json.loads(read_text(path))
    if "config" not in record or "deployed" not in record:
        raise DeployError("the version was deployed before rollbacks existed", str(path), "deploy its bundle again")
    return _Record(record["config"], record["deployed"])


def _change(folder: Path, version: int) -> tuple[Path, RolledBack, str]:
    """Return a model's folder, its change, and its config.pbtxt: as deployed, with only that version."""
    text = _record(folder, version).config + "\n" + config_text([versions((version,))])
    read_config(text, str(folder / str(version) / DEPLOYMENT))
    return folder, RolledBack(folder.name, version, _served(folder)), text
