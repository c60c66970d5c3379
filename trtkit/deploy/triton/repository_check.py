"""What is wrong with a repository for the server that is to load it: found before it starts."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from trtkit.deploy.triton.compatibility import check_backend, check_tensorrt, running_release
from trtkit.deploy.triton.model_config import read_config
from trtkit.deploy.triton.repository import CONFIG, DEPLOYMENT
from trtkit.engine.manifest import BackendRecord
from trtkit.errors import DeployError, Problem, ProblemsError
from trtkit.sources.digest import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.deploy.triton.server_files import ServerFiles

_DEPLOY = "deploy the model again"
# Names of older configurations that stand for a backend.
_PLATFORMS = {"tensorrt_plan": "tensorrt", "onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "pytorch"}
_CACHE_FLAGS = ("--cache-config=local,size=268435456",)
_RATE_FLAGS = ("--rate-limit=execution_count",)


@dataclass(frozen=True)
class RepositoryModel:
    """A model of a repository with its ModelConfig read. folder: where it stands."""

    name: str
    folder: Path
    config: Any

    @property
    def backend(self) -> str:
        """The backend that runs it, also where an older configuration names a platform."""
        platform = str(self.config.platform)
        return str(self.config.backend) or _PLATFORMS.get(platform, platform)

    @property
    def steps(self) -> tuple[str, ...]:
        """Models that an ensemble hands its requests to."""
        return tuple(step.model_name for step in self.config.ensemble_scheduling.step)

    @property
    def versions(self) -> list[Path]:
        """Folders of the versions that are served: those that the configuration names, or all."""
        there = [path for path in self.folder.iterdir() if path.is_dir() and path.name.isdecimal()]
        named = self.config.version_policy.specific.versions
        return [path for path in sorted(there, key=lambda path: int(path.name)) if not named or int(path.name) in named]


def read_repository(repository: Path) -> list[RepositoryModel]:
    """Return the repository's models. Raises DeployError where it is none, ProblemsError for configurations."""
    if not repository.is_dir():
        raise DeployError("no such repository", str(repository), "give a folder that `trtkit deploy` wrote")
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
        what = f"no model here: no folder has a `{CONFIG}`"
        raise DeployError(what, str(repository), "give a folder that `trtkit deploy` wrote")
    return models


def check_repository(repository: Path, files: ServerFiles, only: Sequence[str] = ()) -> list[RepositoryModel]:
    """Return the models that the server is to load. only: their names, all where none are given.

    Raises ProblemsError with all that is wrong with them: links and paths out of the repository, files that are not
    those that were deployed, backends that the server lacks, plans that it cannot load.
    """
    models = read_repository(repository)
    problems = [*_links(repository), *_strangers(repository), *_unknown(models, only)]
    chosen = [model for model in models if not only or model.name in _with_steps(only, models)]
    for model in chosen:
        problems += [*_config_problems(model, files, {each.name for each in models}), *_version_problems(model)]
    if problems:
        raise ProblemsError(f"{repository} cannot be served", problems)
    return chosen


def needed_flags(models: Sequence[RepositoryModel], files: ServerFiles) -> tuple[str, ...]:
    """Return what the server must be started with for the models: a response cache, a rate limiter."""
    flags: tuple[str, ...] = ()
    if any(model.config.response_cache.enable for model in models):
        flags += _CACHE_FLAGS
        flags += (f"--cache-directory={files.caches}",) if files.wheel and files.caches else ()
    if any(group.rate_limiter.resources for model in models for group in model.config.instance_group):
        flags += _RATE_FLAGS
    return flags


def _links(repository: Path) -> Iterator[Problem]:
    """Yield every symbolic link below the repository: a server would follow it out."""
    for folder, folders, files in os.walk(repository):
        for name in sorted([*folders, *files]):
            path = Path(folder) / name
            if path.is_symlink():
                yield Problem("is a symbolic link", str(path), "put the file or folder itself there")


def _strangers(repository: Path) -> Iterator[Problem]:
    """Yield every folder that is no model: Triton takes each one for a model."""
    for path in sorted(repository.iterdir()):
        if path.is_dir() and not path.name.startswith(".") and not (path / CONFIG).exists():
            yield Problem(f"the folder has no `{CONFIG}`", str(path), "remove it from the repository")


def _unknown(models: Sequence[RepositoryModel], names: Sequence[str]) -> list[Problem]:
    known = [model.name for model in models]
    fix = f"it has {', '.join(known)}"
    return [Problem(f"the repository has no model `{name}`", "--load", fix) for name in names if name not in known]


def _with_steps(names: Sequence[str], models: Sequence[RepositoryModel]) -> set[str]:
    """Return the names with those of their steps, since Triton loads these with an ensemble."""
    found, waiting = set(names), list(names)
    by_name = {model.name: model for model in models}
    while waiting:
        steps = by_name[name].steps if (name := waiting.pop()) in by_name else ()
        waiting += [step for step in steps if step not in found]
        found |= set(steps)
    return found


def _config_problems(model: RepositoryModel, files: ServerFiles, known: set[str]) -> Iterator[Problem]:
    where = str(model.folder / CONFIG)
    backend = "ensemble" if model.steps else model.backend
    if backend not in files.backends:
        what = f"the server has no backend `{backend}`; it has {', '.join(files.backends)}"
        yield Problem(what, where, "serve the repository from NVIDIA's container")
    if model.config.name not in {"", model.name}:
        yield Problem(f"the configuration is of a model `{model.config.name}`", where, _DEPLOY)
    for step in model.steps:
        if step not in known:
            yield Problem(f"the ensemble needs a model `{step}`, which is not here", where, _DEPLOY)
    for name in (model.config.default_model_filename, *model.config.cc_model_filenames.values()):
        if name and not _is_inside(name):
            yield Problem(f"`{name}` is no file of the model's own", where, _DEPLOY)
    for key, parameter in model.config.parameters.items():
        if ".." in PurePosixPath(parameter.string_value).parts:
            yield Problem(f"`{key}` leads out of the repository: `{parameter.string_value}`", where, _DEPLOY)


def _version_problems(model: RepositoryModel) -> Iterator[Problem]:
    versions = model.versions
    named = set(model.config.version_policy.specific.versions) - {int(path.name) for path in versions}
    for number in sorted(named):
        yield Problem(f"version {number} is served and not here", str(model.folder), _DEPLOY)
    if not versions and not named and not model.steps:
        yield Problem("the model has no version", str(model.folder), _DEPLOY)
    for version in versions:
        if (version / DEPLOYMENT).exists():
            yield from _deployment_problems(version)


def _deployment_problems(version: Path) -> Iterator[Problem]:
    """Yield how a version differs from what was deployed; a plan and model.py are code."""
    file = version / DEPLOYMENT
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        digests: dict[str, str] = dict(record["files"])
        backend, library = str(record["backend"]), record["backend_library"]
        built_with = None if library is None else BackendRecord.model_validate(library)
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Problem(f"cannot be read: {error}", str(file), _DEPLOY)
        return
    yield from _file_problems(version, digests)
    if built_with is not None:
        yield from _library_problems(built_with, backend, version)


def _file_problems(version: Path, digests: dict[str, str]) -> Iterator[Problem]:
    for name, sha256 in digests.items():
        path = version / name
        if not _is_inside(name):
            yield Problem(f"`{name}` is no file of the version's own", str(version / DEPLOYMENT), _DEPLOY)
        elif not path.is_file():
            yield Problem("the file is missing", str(path), _DEPLOY)
        elif sha256_of(path) != sha256:
            yield Problem("the file is not the one that was deployed: its SHA-256 differs", str(path), _DEPLOY)
    for path in sorted(version.rglob("*")):
        found = path.relative_to(version)
        is_known = str(found) in {*digests, DEPLOYMENT} or found.parent.name == "__pycache__"
        if path.is_file() and not is_known:
            yield Problem("the file was not deployed", str(path), "remove it, or deploy the model again")


def _library_problems(library: BackendRecord, backend: str, version: Path) -> Iterator[Problem]:
    """Yield why the plan cannot be loaded, as far as the server's TensorRT is known: inside of NVIDIA's container."""
    release = running_release()
    try:
        check_backend(library, backend)
        if backend == "tensorrt" and release is not None and release.tensorrt is not None:
            check_tensorrt(library, release.tensorrt, str(version))
    except DeployError as error:
        yield Problem(error.what, str(version), error.fix)


def _is_inside(name: str) -> bool:
    """Whether a relative path stays where it starts."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
