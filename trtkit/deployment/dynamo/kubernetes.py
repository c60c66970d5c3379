"""Kubernetes manifests that serve a language model's bundle: in each pod a frontend and its workers, a GPU for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.deployment.dynamo.extra import VERSION
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
from trtkit.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.deployment.dynamo.model_folder import ServedModel

_PORT, _BUNDLE = 8000, "/bundle"
_GRACE_S, _START_S = 60, 900
QUEUE_METRIC = "dynamo_frontend_queued_requests"
_CLAIM_NOTE = "Copy the bundle into the volume; its nodes must be able to read it together."
_NETWORK_NOTE = "Dynamo does not authenticate clients: requests come from this namespace alone."
_SCALE_NOTE = f"""\
Needs prometheus-adapter, which takes the frontend's metric as it is. Its rule, in the adapter's values:
  rules:
    custom:
      - seriesQuery: '{QUEUE_METRIC}{{namespace!="",pod!=""}}'
        resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}}}}}
        metricsQuery: sum(<<.Series>>{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)"""


@dataclass(frozen=True)
class ClusterFacts:
    """What is served where. name: of all objects. workers: in a pod, each on GPUs of its own: one per rank.

    queued: requests that may wait in a pod before another is added.
    """

    name: str
    model: str
    storage_gib: int
    workers: int = 1
    ranks: int = 1
    replicas: int = 1
    max_replicas: int = 4
    cpus: int = 4
    memory_gib: int = 16
    queued: int = 8


def cluster_facts(name: str, model: ServedModel, workers: int = 1) -> ClusterFacts:
    """Return what serves a bundle on a cluster: a volume with room for it and for a newer one."""
    return ClusterFacts(cluster_name(name), name, room_gib(model.path), workers, model.ranks)


def write_manifests(facts: ClusterFacts, folder: Path) -> list[Path]:
    """Write manifests and the Dockerfile of their image; return the files. Raises DeployError where that fails."""
    return write_files(manifests(facts), folder)


def manifests(facts: ClusterFacts) -> dict[str, str]:
    """Return file name to text."""
    return {
        "deployment.yaml": to_yaml(_deployment(facts)),
        "service.yaml": to_yaml(service(facts.name, {"http": _PORT})),
        "hpa.yaml": to_yaml(_autoscaler(facts), _SCALE_NOTE),
        "persistentvolumeclaim.yaml": to_yaml(claim(facts.name, facts.storage_gib), _CLAIM_NOTE),
        "networkpolicy.yaml": to_yaml(network_policy(facts.name, ("http",)), _NETWORK_NOTE),
        "Dockerfile": _dockerfile(),
    }


def _image() -> str:
    return f"trtkit-dynamo:{__version__}"


def _dockerfile() -> str:
    """Return what the pods run: put trtkit's wheel beside it, and build."""
    return f"""\
# docker build -t {_image()} .
FROM python:3.12-slim
COPY trtkit-*.whl /tmp/
RUN pip install --no-cache-dir "$(echo /tmp/trtkit-*.whl)[tensorrt,dynamo]" \\
  && pip install --no-cache-dir --no-deps ai-dynamo=={VERSION}
USER 1000:1000
"""


def _deployment(facts: ClusterFacts) -> Manifest:
    volumes = [read_only("bundle", facts.name)]
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": str(_PORT)}
    return deployment(facts.name, facts.replicas, pod(_container(facts), volumes, _GRACE_S), scraped)


def _container(facts: ClusterFacts) -> Manifest:
    serve = ["trtkit", "serve", _BUNDLE, "--name", facts.model, "--replicas", str(facts.workers)]
    return {
        "name": "serve",
        "image": _image(),
        "args": [*serve, "--host", "0.0.0.0", "--http-port", str(_PORT)],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "TRTKIT_CACHE_DIR", "value": "/tmp/trtkit"}],
        "ports": [{"name": "http", "containerPort": _PORT}],
        "startupProbe": {**probe("/health"), "failureThreshold": _START_S // PROBE_S},
        "readinessProbe": probe("/health"),
        "livenessProbe": probe("/live"),
        "resources": resources(facts.cpus, facts.memory_gib, facts.workers * facts.ranks),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "bundle", "mountPath": _BUNDLE, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _autoscaler(facts: ClusterFacts) -> Manifest:
    return autoscaler(facts.name, (facts.replicas, facts.max_replicas), QUEUE_METRIC, facts.queued)
