"""Serving a repository on another machine: command lines of a container and of tritonserver, Kubernetes manifests."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.bundle.records import BackendRecord
from trtkit.deployment.kubernetes_objects import (
    PROBE_S,
    Manifest,
    autoscaler,
    claim,
    cluster_name,
    container_security,
    deployment,
    network_policy,
    pod,
    probe,
    read_only,
    resources,
    room_gib,
    service,
    to_yaml,
    write_files,
)
from trtkit.deployment.triton.compatibility import (
    check_release,
    choose_release,
    find_release,
    newest_release,
    release_warning,
)
from trtkit.deployment.triton.endpoints import Endpoints
from trtkit.deployment.triton.repository import DEPLOYMENT
from trtkit.deployment.triton.repository_check import read_repository
from trtkit.errors import DeployError
from trtkit.files import write_output
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.deployment.triton.compatibility import Release
    from trtkit.deployment.triton.repository_check import RepositoryModel
    from trtkit.deployment.triton.served import DeployedModel

DOCKERFILE = "Dockerfile"


def check_models(models: Sequence[DeployedModel], name: str) -> None:
    """Raise DeployError if the Triton release `name` cannot load one of the models."""
    release = find_release(name)
    for model in models:
        if model.bundle is not None:
            check_release(model.bundle.manifest.backend, release, model.backend)


def container_notes(repository: Path) -> list[str]:
    """Return how to serve the repository from a container, or why no container is known."""
    try:
        facts = container_facts(read_repository(repository))
    except DeployError as error:
        return [f"no container is known for it: {error.what}; {error.fix}"]
    warning = release_warning(facts.release)
    line = docker_command(facts, repository).replace("\n", "\n  ")
    image = "; its image is trtkit on Triton's, see --kubernetes" if facts.needs_trtkit else ""
    return [*([warning] if warning else []), f"in a container{image}:\n    {line}"]


def write_cluster(repository: Path, name: str, folder: Path) -> list[Path]:
    """Write manifests, and a Dockerfile if models need trtkit; return the files. Raises DeployError."""
    facts = container_facts(read_repository(repository))
    files = write_manifests(cluster_facts(name, repository, facts), folder)
    if facts.needs_trtkit:
        files.append(folder / DOCKERFILE)
        write_output(files[-1], dockerfile(facts))
    return files


QUEUE_METRIC = "triton_queue_time_us"
_GRACE_S = 60
_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
_CLAIM_NOTE = "Copy the repository into the volume; its nodes must be able to read it together."
_NETWORK_NOTE = "Triton asks nobody who they are: requests come from this namespace alone, metrics from anywhere."
_SCALE_NOTE = """\
Needs prometheus-adapter, which turns Triton's counters into the metric below. Its rule, in the adapter's values:
  rules:
    custom:
      - seriesQuery: 'nv_inference_queue_duration_us{namespace!="",pod!=""}'
        resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
        name: {as: "triton_queue_time_us"}
        metricsQuery: >-
          sum(rate(nv_inference_queue_duration_us{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>)
          / sum(rate(nv_inference_request_success{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>)"""


@dataclass(frozen=True)
class TritonClusterFacts:
    """What is served where. name: of all objects. queue_us: how long a request may wait before a pod is added."""

    name: str
    container: ContainerFacts
    replicas: int = 1
    max_replicas: int = 4
    cpus: int = 4
    memory_gib: int = 16
    storage_gib: int = 20
    start_timeout_s: int = 600
    queue_us: int = 50_000


def cluster_facts(name: str, repository: Path, container: ContainerFacts) -> TritonClusterFacts:
    """Return the cluster facts of a repository: a volume has room for it and for new versions of the same size."""
    return TritonClusterFacts(cluster_name(name), container, storage_gib=room_gib(repository))


def manifests(facts: TritonClusterFacts) -> dict[str, str]:
    """Return manifests as YAML by file name: Deployment, Service, autoscaler, volume claim, network policy."""
    return {
        "deployment.yaml": to_yaml(_deployment(facts)),
        "service.yaml": to_yaml(service(facts.name, _PORTS)),
        "hpa.yaml": to_yaml(_autoscaler(facts), _SCALE_NOTE),
        "persistentvolumeclaim.yaml": to_yaml(claim(facts.name, facts.storage_gib), _CLAIM_NOTE),
        "networkpolicy.yaml": to_yaml(network_policy(facts.name, ("http", "grpc"), ("metrics",)), _NETWORK_NOTE),
    }


def write_manifests(facts: TritonClusterFacts, folder: Path) -> list[Path]:
    """Write the manifests; return the files. Raises DeployError if the folder cannot be written."""
    return write_files(manifests(facts), folder)


def _deployment(facts: TritonClusterFacts) -> Manifest:
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": str(_PORTS["metrics"])}
    volumes = [
        read_only("models", facts.name),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{facts.container.shm_mib}Mi"}},
    ]
    return deployment(facts.name, facts.replicas, pod(_container(facts), volumes, _GRACE_S), scraped)


def _container(facts: TritonClusterFacts) -> Manifest:
    ready = probe("/v2/health/ready")
    return {
        "name": "triton",
        "image": facts.container.image,
        "args": ["tritonserver", *facts.container.arguments, f"--exit-timeout-secs={_GRACE_S - 15}"],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            {"name": "TRTKIT_CACHE_DIR", "value": "/tmp/trtkit"},
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in _PORTS.items()],
        "startupProbe": {**ready, "failureThreshold": max(1, facts.start_timeout_s // PROBE_S)},
        "readinessProbe": ready,
        "livenessProbe": {**_liveness(facts), "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 3},
        "resources": resources(facts.cpus, facts.memory_gib, facts.container.gpus),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "models", "mountPath": MODELS, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _liveness(facts: TritonClusterFacts) -> Manifest:
    """Return the liveness probe: Triton itself reports live even when a Python model's process is gone."""
    if facts.container.needs_trtkit:
        return {"exec": {"command": ["python3", "-P", "-m", "trtkit.deployment.triton.health", str(_PORTS["http"])]}}
    return probe("/v2/health/live")


def _autoscaler(facts: TritonClusterFacts) -> Manifest:
    return autoscaler(facts.name, facts.replicas, facts.max_replicas, QUEUE_METRIC, facts.queue_us)


MODELS = "/models"
_EXTRAS = "rtx,torch,llm,verify"


@dataclass(frozen=True)
class ContainerFacts:
    """Requirements of a container that serves a repository.

    release: of Triton. needs_trtkit: whether models of the Python backend import it. gpus: number of GPUs, 0 for none.
    flags: of tritonserver in addition to the safe defaults. shm_mib: memory that the Python backend shares with its
    processes.
    """

    release: Release
    needs_trtkit: bool
    gpus: int = 1
    flags: tuple[str, ...] = ()
    shm_mib: int = 1024

    @property
    def image(self) -> str:
        """NVIDIA's container, or the one that `dockerfile` derives from it."""
        return f"trtkit-triton:{self.release.name}" if self.needs_trtkit else self.release.image

    @property
    def arguments(self) -> list[str]:
        """The server's arguments in the container: clients cannot load models."""
        return [f"--model-repository={MODELS}", "--model-control-mode=none", *self.flags]


def container_facts(models: Sequence[RepositoryModel]) -> ContainerFacts:
    """Return the container facts of these models.

    Raises DeployError if no single known release loads all their plans.
    """
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
    """Return the `docker run` command: reachable from this machine only, unless the endpoints widen that."""
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
    """Return the Dockerfile of the image for Python models: NVIDIA's container with trtkit."""
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


def _deployments(model: RepositoryModel) -> list[Path]:
    return [version / DEPLOYMENT for version in model.versions if (version / DEPLOYMENT).is_file()]
