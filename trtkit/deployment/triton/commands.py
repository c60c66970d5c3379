"""The lines that serve a repository elsewhere: a container's, and tritonserver's own."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.bundle.records import BackendRecord
from trtkit.deployment.triton.compatibility import choose_release
from trtkit.deployment.triton.endpoints import Endpoints
from trtkit.deployment.triton.local_server import server_flags
from trtkit.deployment.triton.releases import newest_release
from trtkit.deployment.triton.repository import DEPLOYMENT
from trtkit.errors import DeployError
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.deployment.triton.local_server import ServeOptions
    from trtkit.deployment.triton.releases import Release
    from trtkit.deployment.triton.repository_check import RepositoryModel

MODELS = "/models"
_EXTRAS = "rtx,torch,llm,verify"


@dataclass(frozen=True)
class ContainerFacts:
    """What a container must have to serve a repository.

    release: of Triton. needs_trtkit: models of the Python backend import it. gpus: how many; 0 for none.
    flags: of tritonserver beyond the safe defaults. shm_mib: memory that the Python backend shares with its processes.
    """

    release: Release
    needs_trtkit: bool
    gpus: int = 1
    flags: tuple[str, ...] = ()
    shm_mib: int = 1024

    @property
    def image(self) -> str:
        """NVIDIA's container, or the one that `dockerfile` makes of it."""
        return f"trtkit-triton:{self.release.name}" if self.needs_trtkit else self.release.image

    @property
    def arguments(self) -> list[str]:
        """The server's arguments in the container: no model comes from a client."""
        return [f"--model-repository={MODELS}", "--model-control-mode=none", *self.flags]


def container_facts(models: Sequence[RepositoryModel]) -> ContainerFacts:
    """Return what serves these models. Raises DeployError where no one known release loads all their plans."""
    records = [json.loads(file.read_text("utf-8")) for model in models for file in _deployments(model)]
    needed = {
        choose_release(BackendRecord.model_validate(record["backend_library"]), record["backend"])
        for record in records
        if record["backend_library"] is not None and record["backend"] == "tensorrt"
    }
    if len(needed) > 1:
        names = ", ".join(sorted(release.name for release in needed))
        raise DeployError(f"the models need different Triton releases: {names}", fix="serve them separately")
    needs_trtkit = any(record["backend"] == "python" for record in records)
    gpus = max((int(record.get("ranks", 1)) for record in records), default=1)
    return ContainerFacts(next(iter(needed), newest_release()), needs_trtkit, gpus)


def docker_command(facts: ContainerFacts, repository: Path, endpoints: Endpoints | None = None) -> str:
    """Return the `docker run` line: reached from this machine alone, unless the endpoints say otherwise."""
    ends = endpoints or Endpoints()
    ports = zip((ends.http_port, ends.grpc_port, ends.metrics_port), (8000, 8001, 8002), strict=True)
    parts = [
        "docker run --rm",
        *(["--gpus all" if facts.gpus > 1 else "--gpus 1"] if facts.gpus else []),
        f"--shm-size={facts.shm_mib}m --cap-drop=ALL --security-opt=no-new-privileges",
        *(f"-p {ends.host}:{outside}:{inside}" for outside, inside in ports),
        shlex.join(["-v", f"{repository.resolve()}:{MODELS}:ro"]),
        facts.image,
        f"tritonserver {shlex.join(facts.arguments)}",
    ]
    return " \\\n  ".join(parts)


def dockerfile(facts: ContainerFacts) -> str:
    """Return the Dockerfile of the image that Python models are served from: NVIDIA's container and trtkit."""
    wheel = f"trtkit-{__version__}-py3-none-any.whl"
    return "\n".join(
        [
            f"# pip wheel --no-deps -w . FOLDER_OF_TRTKIT && docker build -t {facts.image} -f Dockerfile .",
            f"FROM {facts.release.image}",
            f"COPY {wheel} /tmp/{wheel}",
            f"RUN pip install --no-cache-dir --break-system-packages '/tmp/{wheel}[{_EXTRAS}]'",
            "ENV PYTHONDONTWRITEBYTECODE=1",
            "USER triton-server",
            "",
        ]
    )


def tritonserver_command(options: ServeOptions) -> str:
    """Return the line that serves a repository where `tritonserver` is installed."""
    return " \\\n  ".join(shlex.quote(word) for word in ["tritonserver", *server_flags(options)])


def _deployments(model: RepositoryModel) -> list[Path]:
    return [version / DEPLOYMENT for version in model.versions if (version / DEPLOYMENT).is_file()]
