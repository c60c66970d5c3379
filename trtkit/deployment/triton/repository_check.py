"""Checks of a repository for the server that is to load it, before the server starts."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from trtkit.bundle.records import BackendRecord
from trtkit.deployment.triton.compatibility import check_backend, check_tensorrt, running_release
from trtkit.deployment.triton.model_config import read_config
from trtkit.deployment.triton.repository import CONFIG, DEPLOYMENT
from trtkit.errors import DeployError, Problem, ProblemsError
from trtkit.files import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.deployment.triton.server_files import ServerFiles

_DEPLOY = "deploy the model again"
_UNDEPLOYED = "deploy the model again; `--allow-undeployed` serves models that trtkit did not write"
# Names that denote a backend in older configurations.
_PLATFORMS = {"tensorrt_plan": "tensorrt", "onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "pytorch"}
# Configuration fields that select files to run; `trtkit deploy` writes none of them.
_CODE_FIELDS = (
    "runtime", "default_model_filename", "cc_model_filenames", "model_operations", "model_repository_agents",
)  # fmt: skip
_CACHE_FLAGS = ("--cache-config=local,size=268435456",)
_RATE_FLAGS = ("--rate-limit=execution_count",)


@dataclass(frozen=True)
class RepositoryModel:
    """A model of a repository with its parsed ModelConfig. folder: its location."""

    name: str
    folder: Path
    config: Any

    @property
    def backend(self) -> str:
        """The backend that runs it, also if an older configuration names a platform."""
        platform = str(self.config.platform)
        return str(self.config.backend) or _PLATFORMS.get(platform, platform)

    @property
    def steps(self) -> tuple[str, ...]:
        """Models that an ensemble calls."""
        return tuple(step.model_name for step in self.config.ensemble_scheduling.step)

    @property
    def versions(self) -> list[Path]:
        """Folders of the served versions: those named in the configuration, or all."""
        there = [path for path in self.folder.iterdir() if path.is_dir() and path.name.isdecimal()]
        named = self.config.version_policy.specific.versions
        return [path for path in sorted(there, key=lambda path: int(path.name)) if not named or int(path.name) in named]


def read_repository(repository: Path) -> list[RepositoryModel]:
    """Return the repository's models.

    Raises DeployError if it is not a repository, ProblemsError for configurations.
    """
    if not repository.is_dir():
        fix = "give a folder that `trtkit deploy` wrote"
        raise DeployError("no such repository", str(repository), fix)
    models, problems = [], []
    for folder in sorted(path for path in repository.iterdir() if (path / CONFIG).exists()):
        file = folder / CONFIG
        try:
            models.append(RepositoryModel(folder.name, folder, read_config(file.read_text("utf-8"), str(file))))
        except DeployError as error:
            problems.append(Problem(error.what, error.where, error.fix))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(f"cannot be read: {error}", str(file), _DEPLOY))
    if problems:
        raise ProblemsError("the repository cannot be served", problems)
    if not models:
        what = f"no models: no folder has a `{CONFIG}`"
        raise DeployError(what, str(repository), "give a folder that `trtkit deploy` wrote")
    return models


def check_repository(
    repository: Path, files: ServerFiles, only: Sequence[str] = (), *, allow_undeployed: bool = False
) -> list[RepositoryModel]:
    """Return the models that the server is to load. only: their names; all if empty.

    allow_undeployed: accept models that `trtkit deploy` did not write, whose code is unchecked. Raises ProblemsError
    with everything that is wrong with them: links and paths out of the repository, files that differ from the deployed
    ones, configurations that run other files, backends that the server lacks, plans that it cannot load.
    """
    models = read_repository(repository)
    problems = [*_links(repository), *_strangers(repository), *_unknown(models, only)]
    chosen = [model for model in models if not only or model.name in _with_steps(only, models)]
    for model in models:  # those that are not chosen too: a client may load them
        if model in chosen:
            problems += [
                *_config_problems(model, files, {deployed.name for deployed in models}),
                *_version_problems(model),
            ]
        problems += _trust_problems(model, allow_undeployed=allow_undeployed)
    if problems:
        raise ProblemsError(f"{repository} cannot be served", problems)
    return chosen


def remove_bytecode(repository: Path) -> None:
    """Remove compiled Python from a repository; whatever cannot be removed is left to `check_repository`.

    Triton's stub compiles each model.py next to it, regardless of the environment. The next start must neither run such
    a file, which no record covers, nor be refused because of it.
    """
    for folder, folders, _ in os.walk(repository):
        if "__pycache__" in folders and not (cache := Path(folder, "__pycache__")).is_symlink():
            with contextlib.suppress(OSError):
                for path in cache.glob("*.pyc*"):
                    path.unlink(missing_ok=True)
                cache.rmdir()


def needed_flags(models: Sequence[RepositoryModel], files: ServerFiles) -> tuple[str, ...]:
    """Return the server flags that the models need: a response cache, a rate limiter."""
    flags: tuple[str, ...] = ()
    if any(model.config.response_cache.enable for model in models):
        flags += _CACHE_FLAGS
        flags += (f"--cache-directory={files.caches}",) if files.wheel and files.caches else ()
    if any(group.rate_limiter.resources for model in models for group in model.config.instance_group):
        flags += _RATE_FLAGS
    return flags


def _links(repository: Path) -> Iterator[Problem]:
    """Yield every symbolic link in the repository: a server would follow it out of the repository."""
    for folder, folders, files in os.walk(repository):
        for name in sorted([*folders, *files]):
            path = Path(folder) / name
            if path.is_symlink():
                yield Problem("is a symbolic link", str(path), "replace it with the file or folder itself")


def _strangers(repository: Path) -> Iterator[Problem]:
    """Yield every folder that is not a model: Triton treats each one as a model."""
    for path in sorted(repository.iterdir()):
        if path.is_dir() and not path.name.startswith(".") and not (path / CONFIG).exists():
            yield Problem(f"the folder has no `{CONFIG}`", str(path), "remove it from the repository")


def _unknown(models: Sequence[RepositoryModel], names: Sequence[str]) -> list[Problem]:
    known = [model.name for model in models]
    fix = f"it has {', '.join(known)}"
    return [Problem(f"the repository has no model `{name}`", "--load", fix) for name in names if name not in known]


def _with_steps(names: Sequence[str], models: Sequence[RepositoryModel]) -> set[str]:
    """Return the names and those of their steps, since Triton loads these with an ensemble."""
    reached, waiting = set(names), list(names)
    by_name = {model.name: model for model in models}
    while waiting:
        steps = by_name[name].steps if (name := waiting.pop()) in by_name else ()
        waiting += [step for step in steps if step not in reached]
        reached |= set(steps)
    return reached


def _config_problems(model: RepositoryModel, files: ServerFiles, known: set[str]) -> Iterator[Problem]:
    where = str(model.folder / CONFIG)
    backend = "ensemble" if model.steps else model.backend
    if backend not in files.backends:
        what = f"the server has no backend `{backend}`; it has {', '.join(files.backends)}"
        yield Problem(what, where, "serve the repository from NVIDIA's container")
    if model.config.name not in {"", model.name}:
        yield Problem(f"the configuration belongs to model `{model.config.name}`", where, _DEPLOY)
    for step in model.steps:
        if step not in known:
            yield Problem(f"the ensemble needs model `{step}`, which is missing", where, _DEPLOY)
    for name in (model.config.default_model_filename, *model.config.cc_model_filenames.values()):
        if name and not _is_inside(name):
            yield Problem(f"`{name}` is not a file of the model", where, _DEPLOY)
    for key, parameter in model.config.parameters.items():
        path = PurePosixPath(parameter.string_value)
        if ".." in path.parts or path.is_absolute():
            yield Problem(f"`{key}` points outside the repository: `{path}`", where, _DEPLOY)


def _version_problems(model: RepositoryModel) -> Iterator[Problem]:
    versions = model.versions
    named = set(model.config.version_policy.specific.versions) - {int(path.name) for path in versions}
    for number in sorted(named):
        yield Problem(f"version {number} is listed but missing", str(model.folder), _DEPLOY)
    if not versions and not named and not model.steps:
        yield Problem("the model has no versions", str(model.folder), _DEPLOY)
    for version in versions:
        with contextlib.suppress(DeployError):  # a record that cannot be read is a problem of trust
            record = _read_record(version)
            if record.library is not None:
                yield from _library_problems(record.library, record.backend, version)


def _trust_problems(model: RepositoryModel, *, allow_undeployed: bool) -> Iterator[Problem]:
    """Yield what could run but was not deployed: versions, files in the model's folder, parts of its configuration."""
    deployed = [version for version in model.versions if (version / DEPLOYMENT).exists()]
    if allow_undeployed and not deployed:
        return
    yield from _code_problems(model)
    for version in model.versions:
        if version not in deployed:
            what = f"the version has no `{DEPLOYMENT}`, so its code cannot be checked"
            yield Problem(what, str(version), _UNDEPLOYED)
            continue
        try:
            yield from _file_problems(version, _read_record(version).digests)
        except DeployError as error:
            yield Problem(error.what, error.where, error.fix)


def _code_problems(model: RepositoryModel) -> Iterator[Problem]:
    """Yield what could run with a model apart from its versions: configuration fields, files in its folder."""
    fields = [field.name for field, _ in model.config.ListFields() if field.name in _CODE_FIELDS]
    for name in [*fields, *model.config.parameters]:
        what = f"`{name}` was not written by `trtkit deploy` and can make the server run code"
        yield Problem(what, str(model.folder / CONFIG), _DEPLOY)
    for path in sorted(model.folder.iterdir()):
        is_known = path.name == CONFIG or (path.is_dir() and path.name.isdecimal())
        if not is_known and not path.is_symlink():
            yield Problem("was not deployed", str(path), "remove it, or deploy the model again")


@dataclass(frozen=True)
class _Record:
    """A version's deployment.json. digests: SHA-256 by file."""

    digests: dict[str, str]
    backend: str
    library: BackendRecord | None


def _read_record(version: Path) -> _Record:
    """Return the deployment record of a version. Raises DeployError if it cannot be read."""
    file = version / DEPLOYMENT
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        library = record["backend_library"]
        built_with = None if library is None else BackendRecord.model_validate(library)
        return _Record(dict(record["files"]), str(record["backend"]), built_with)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeployError(f"cannot be read: {error}", str(file), _DEPLOY) from None


def _file_problems(version: Path, digests: dict[str, str]) -> Iterator[Problem]:
    for name, sha256 in digests.items():
        path = version / name
        if not _is_inside(name):
            yield Problem(f"`{name}` is not a file of the version", str(version / DEPLOYMENT), _DEPLOY)
        elif not path.is_file():
            yield Problem("the file is missing", str(path), _DEPLOY)
        elif sha256_of(path) != sha256:
            yield Problem("the file has changed since it was deployed: SHA-256 mismatch", str(path), _DEPLOY)
    for path in sorted(version.rglob("*")):
        is_known = str(path.relative_to(version)) in {*digests, DEPLOYMENT}
        if not is_known and not path.is_dir() and not path.is_symlink():
            yield Problem("the file was not deployed", str(path), "remove it, or deploy the model again")


def _library_problems(library: BackendRecord, backend: str, version: Path) -> Iterator[Problem]:
    """Yield why the plan cannot be loaded, if the server's TensorRT is known: inside NVIDIA's container."""
    release = running_release()
    try:
        check_backend(library, backend)
        if backend == "tensorrt" and release is not None and release.tensorrt is not None:
            check_tensorrt(library, release.tensorrt, str(version))
    except DeployError as error:
        yield Problem(error.what, str(version), error.fix)


def _is_inside(name: str) -> bool:
    """Whether a relative path stays inside its starting folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
