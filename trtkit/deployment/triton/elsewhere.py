"""How a repository is served on another machine: a container's line, its image, manifests for a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.deployment.triton.commands import container_facts, docker_command, dockerfile
from trtkit.deployment.triton.compatibility import check_release, release_warning
from trtkit.deployment.triton.kubernetes import cluster_facts, write_manifests
from trtkit.deployment.triton.releases import find_release
from trtkit.deployment.triton.repository_check import read_repository
from trtkit.errors import DeployError
from trtkit.files import write_output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.deployment.triton.served import ServedModel

DOCKERFILE = "Dockerfile"


def check_models(models: Sequence[ServedModel], name: str) -> None:
    """Raise DeployError where a release of Triton cannot load one of the models."""
    release = find_release(name)
    for model in models:
        if model.bundle is not None:
            check_release(model.bundle.manifest.backend, release, model.backend)


def container_notes(repository: Path) -> list[str]:
    """Return how the repository is served from a container, or why none is known."""
    try:
        facts = container_facts(read_repository(repository))
    except DeployError as error:
        return [f"no container is known for it: {error.what}; {error.fix}"]
    warning = release_warning(facts.release)
    line = docker_command(facts, repository).replace("\n", "\n  ")
    image = "; its image is trtkit on Triton's, see --kubernetes" if facts.needs_trtkit else ""
    return [*([warning] if warning else []), f"in a container{image}:\n    {line}"]


def write_cluster(repository: Path, name: str, folder: Path) -> list[Path]:
    """Write manifests, and a Dockerfile where models need trtkit; return the files. Raises DeployError."""
    facts = container_facts(read_repository(repository))
    files = write_manifests(cluster_facts(name, repository, facts), folder)
    if facts.needs_trtkit:
        files.append(folder / DOCKERFILE)
        write_output(files[-1], dockerfile(facts))
    return files
