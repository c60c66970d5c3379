"""A model repository: its contents, and atomic changes by a deployment.

A version's folder is filled elsewhere and renamed into place; replacing config.pbtxt, which names the served versions,
makes it live. The repository can therefore be loaded at any moment.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from trtkit.backends.gpu import list_gpus
from trtkit.bundle.bundle import open_bundle
from trtkit.bundle.folder_lock import locked
from trtkit.deployment.triton.model_config import config_text, read_config, versions
from trtkit.errors import BundleError, DeployError
from trtkit.files import MANIFEST, read_text, remove_tree, sha256_of
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import Manifest
    from trtkit.deployment.triton.served import DeployedModel

CONFIG, DEPLOYMENT = "config.pbtxt", "deployment.json"
_BUSY = "another deployment is writing this repository"


@dataclass(frozen=True)
class PlacedModel:
    """A model's location: its new version, the versions served from then on, and config.pbtxt before and after."""

    model: DeployedModel
    folder: Path
    version: int
    served: tuple[int, ...]
    config: str
    old_config: str | None


def place_models(models: Sequence[DeployedModel], repository: Path, keep_versions: int) -> list[PlacedModel]:
    """Return where the models go. Raises DeployError if one would break existing clients."""
    _check_folder(repository)
    return [_place(model, repository / model.name, keep_versions) for model in models]


@contextlib.contextmanager
def writing(repository: Path) -> Iterator[None]:
    """Lock the repository, creating it if missing, for one deployment.

    Raises DeployError while another deployment holds it, and if it cannot be written.
    """
    _check_folder(repository)
    folder = repository.resolve()
    try:
        with locked(folder, _BUSY, "--repository"):
            is_new = not folder.exists()
            folder.mkdir(exist_ok=True)
            try:
                yield
            finally:
                if is_new and not any(folder.iterdir()):
                    folder.rmdir()
    except BundleError as error:
        raise DeployError(error.what, error.where, error.fix) from None
    except OSError as error:
        what = f"cannot write: {(error.strerror or str(error)).lower()}"
        raise DeployError(what, str(repository), "choose a writable `--repository` with enough space") from None


def write(placements: Sequence[PlacedModel], repository: Path, on_progress: Callable[[str], None]) -> None:
    """Write the models into the repository, which `writing` has locked, dependencies first.

    All files are written before any model goes live.
    """
    staging = _staging(repository.resolve())
    try:
        deployed = {placement.model.name: placement.version for placement in placements}
        for placement in placements:
            on_progress(f"{placement.model.name} version {placement.version}")
            _fill(placement, staging / placement.model.name, deployed)
        for placement in placements:
            _make_live(placement, staging / placement.model.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def differences(placements: Sequence[PlacedModel]) -> str:
    """Return the changes as a unified diff of config.pbtxt and a line for each new version."""
    lines: list[str] = []
    for placement in placements:
        old = [] if placement.old_config is None else placement.old_config.splitlines()
        path = f"{placement.model.name}/{CONFIG}"
        lines += difflib.unified_diff(
            old, placement.config.splitlines(), path if old else "/dev/null", path, lineterm=""
        )
        lines += [
            f"+++ {placement.model.name}/{placement.version}/{name}" for name in sorted(_contents(placement.model))
        ]
    return "\n".join(lines)


def refuse_links(folder: Path) -> None:
    """Raise DeployError if anything in the folder is a symbolic link: a server would follow it out of the folder."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            raise DeployError("is a symbolic link", str(path), "replace it with the file or folder itself")


def _check_folder(repository: Path) -> None:
    if repository.exists() and not repository.is_dir():
        raise DeployError("is not a folder", str(repository), "choose another `--repository`")


def _place(model: DeployedModel, folder: Path, keep_versions: int) -> PlacedModel:
    if not folder.exists() and not folder.is_symlink():
        return PlacedModel(model, folder, 1, (1,), config_text([*model.sections, versions((1,))]), None)
    refuse_links(folder)
    there = sorted(int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isdecimal())
    if not there or not (folder / str(there[-1]) / DEPLOYMENT).is_file() or not (folder / CONFIG).is_file():
        raise DeployError("already exists and was not written by trtkit", str(folder), "choose another `--name`")
    old_text = (folder / CONFIG).read_text(encoding="utf-8")
    old = read_config(old_text, str(folder / CONFIG))
    live = [number for number in old.version_policy.specific.versions if number in there]
    served = tuple(sorted([*live, there[-1] + 1])[-keep_versions:])
    new_text = config_text([*model.sections, versions(served)])
    _refuse_change(old, read_config(new_text, model.name), folder)
    return PlacedModel(model, folder, there[-1] + 1, served, new_text, old_text)


def _refuse_change(old: Any, new: Any, folder: Path) -> None:
    """Raise DeployError if clients of the previous version would break."""
    changed = [
        f"{kind} {_words(before)} becomes {_words(after)}"
        for kind in ("input", "output")
        for before, after in _unequal(getattr(old, kind), getattr(new, kind))
    ]
    if (old.max_batch_size > 0) != (new.max_batch_size > 0):
        changed.append(f"max_batch_size {old.max_batch_size} becomes {new.max_batch_size}")
    if changed:
        what = f"a new version must keep the interface of the last: {'; '.join(changed)}"
        raise DeployError(what, str(folder), "deploy it under another `--name`")


def _unequal(old: Iterable[Any], new: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return the tensors that differ, each paired with its other form, None if it has none."""
    before, after = ({tensor.name: tensor for tensor in tensors} for tensors in (old, new))
    names = [*before, *(name for name in after if name not in before)]
    pairs = [(before.get(name), after.get(name)) for name in names]
    return [(one, other) for one, other in pairs if _words(one) != _words(other)]


def _words(tensor: Any) -> str:
    if tensor is None:
        return "nothing"
    from tritonclient.grpc.model_config_pb2 import DataType

    return f"`{tensor.name}` {DataType.Name(tensor.data_type)} {list(tensor.dims)}"


def _staging(repository: Path) -> Path:
    """Return an empty staging folder: next to the repository, where no server looks, if on the same file system."""
    is_beside = repository.parent.stat().st_dev == repository.stat().st_dev
    staging = (repository.parent if is_beside else repository) / f".{repository.name}.partial"
    remove_tree(staging)  # left by a killed deployment: the lock says that nobody fills it
    staging.mkdir()
    return staging


def _contents(model: DeployedModel) -> dict[str, Path | str]:
    """Return the files of a version: text, or the path to copy."""
    files: dict[str, Path | str] = {DEPLOYMENT: ""}
    if model.runner is not None:
        module, _, name = model.runner.partition(":")
        template = (
            resources.files("trtkit.deployment.triton.backend").joinpath("model.py.txt").read_text(encoding="utf-8")
        )
        files["model.py"] = template.format(module=module, name=name)
    if model.settings is not None:
        files["settings.json"] = json.dumps(model.settings, indent=1, ensure_ascii=False) + "\n"
    if model.plan is not None:
        files["model.plan"] = model.plan
    if model.bundle is not None and model.plan is None:
        root = model.bundle.path
        bundle = open_bundle(root)  # as it is now, with known requests
        names = [*bundle.file_names(), *([bundle.manifest.known.path] if bundle.manifest.known else [])]
        files |= {f"bundle/{name}": root / name for name in names}
        files[f"bundle/{MANIFEST}"] = portable_manifest(bundle)
    return files


def _fill(placement: PlacedModel, folder: Path, deployed: Mapping[str, int]) -> None:
    """Write the model's folder with only its new version."""
    version = folder / str(placement.version)
    version.mkdir(parents=True)
    for name, content in _contents(placement.model).items():
        target = version / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            target.write_text(content, encoding="utf-8")
        else:
            _link_or_copy(content, target)
    record = {**_record(placement, version), "deployed": deployed}
    (version / DEPLOYMENT).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / CONFIG).write_text(placement.config, encoding="utf-8")


def _record(placement: PlacedModel, version: Path) -> dict[str, Any]:
    """Return deployment.json: what was deployed, and the digest of every file."""
    model = placement.model
    files = sorted(path for path in version.rglob("*") if path.is_file() and path.name != DEPLOYMENT)
    manifest = None if model.bundle is None else model.bundle.manifest
    return {
        "schema_version": 1,
        "trtkit": __version__,
        "model": model.name,
        "version": placement.version,
        "kind": model.kind,
        "backend": model.backend,
        "bundle": None if manifest is None else {"name": manifest.name, "build_key": manifest.build_key},
        "backend_library": None if manifest is None else manifest.backend.model_dump(mode="json"),
        "ranks": 1 if manifest is None else manifest.grid.ranks,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "reasons": list(model.reasons),
        "config": config_text(model.sections),
        "files": {str(path.relative_to(version)): sha256_of(path) for path in files},
    }


def _link_or_copy(source: Path, target: Path) -> None:
    """Hard-link the file, which takes no space; copy it if that is impossible.

    External data is copied: ONNX refuses to read it from a file with several names.
    """
    if source.suffix != ".data":
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def _make_live(placement: PlacedModel, filled: Path) -> None:
    """Rename a new model into the repository, or a new version followed by its config."""
    if placement.old_config is None:
        filled.rename(placement.folder)
        return
    (filled / str(placement.version)).rename(placement.folder / str(placement.version))
    (filled / CONFIG).replace(placement.folder / CONFIG)


def reads_source(manifest: Manifest) -> bool:
    """Whether a server on this machine reads weights from the source: without a GPU, if the bundle lacks some."""
    return manifest.needs_source and not list_gpus()


def portable_manifest(bundle: Bundle) -> str:
    """Return manifest.json with file names instead of absolute paths, except for a source that is read from its path.

    A layer's name may also start with `/`: only paths named by the config and the sources are changed.
    """
    data = json.loads(read_text(bundle.path / MANIFEST))
    source, speculator = data["config"]["source"], (data["config"]["llm"] or {}).get("speculator")
    data["config"] = {key: value if key == "keep_fp32" else _portable(value) for key, value in data["config"].items()}
    if not reads_source(bundle.manifest):
        data["sources"] = _portable(data["sources"])
    else:
        data["config"]["source"] = source
        if data["config"]["llm"] is not None:
            data["config"]["llm"]["speculator"] = speculator
    return json.dumps(data, indent=1) + "\n"


def _portable(value: Any) -> Any:
    """Return a value with absolute paths reduced to their file names."""
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item) for item in value]
    is_path = isinstance(value, str) and PurePath(value).is_absolute()
    return PurePath(value).name if is_path else value
