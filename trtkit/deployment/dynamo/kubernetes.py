"""Kubernetes manifests that serve a language model's bundle: a frontend and its workers, one GPU per rank.

They run in one pod if a node has enough GPUs, otherwise in a group of pods: the LeaderWorkerSet of
https://github.com/kubernetes-sigs/lws, whose first pod has the frontend and rank 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.backends import BACKENDS
from trtkit.deployment.dynamo.extra import VERSION
from trtkit.deployment.kubernetes_objects import (
    PROBE_S,
    Manifest,
    autoscaler,
    claim,
    cluster_name,
    container_security,
    deployment,
    labels,
    named_object,
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
from trtkit.errors import DeployError
from trtkit.serving_options import API_KEY
from trtkit.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.deployment.dynamo.model_folder import ServableBundle

_PORT, _BUNDLE, _RENDEZVOUS = 8000, "/bundle", 29500
GPUS_PER_NODE = 8
_PACKAGES = {"tensorrt": "tensorrt-cu13", "tensorrt_rtx": "tensorrt-rtx-cu13"}
_GROUPS, _GROUP_LABEL = "leaderworkerset.x-k8s.io/v1", "leaderworkerset.sigs.k8s.io/name"
_GROUP_NOTE = "Needs the LeaderWorkerSet controller: https://github.com/kubernetes-sigs/lws"
_GRACE_S, _START_S = 60, 900
QUEUE_METRIC = "dynamo_frontend_queued_requests"
_CLAIM_NOTE = "Copy the bundle into the volume; its nodes must be able to read it together."
_NETWORK_NOTE = "Requests come from this namespace alone; a Secret of this name with `api-key` also asks for that key."
_SCALE_NOTE = f"""\
Needs prometheus-adapter, which takes the frontend's metric as it is. Its rule, in the adapter's values:
  rules:
    custom:
      - seriesQuery: '{QUEUE_METRIC}{{namespace!="",pod!=""}}'
        resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}}}}}
        metricsQuery: sum(<<.Series>>{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)"""


@dataclass(frozen=True)
class DynamoClusterFacts:
    """What is served where. name: of all objects. workers: per pod, each on its own GPUs, one per rank.

    nodes: number of nodes that share a worker's ranks. queued: requests that may wait in a pod before another is added.
    tensorrt, tensorrt_version: the library that built the bundle's plans.
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
    nodes: int = 1
    tensorrt: str = "tensorrt_rtx"
    tensorrt_version: str = ""

    @property
    def gpus(self) -> int:
        return self.workers * self.ranks // self.nodes

    @property
    def target(self) -> tuple[str, str]:
        """API version and kind of the scaled object."""
        return ("apps/v1", "Deployment") if self.nodes == 1 else (_GROUPS, "LeaderWorkerSet")


def cluster_facts(model: ServableBundle, workers: int = 1, gpus_per_node: int = GPUS_PER_NODE) -> DynamoClusterFacts:
    """Return the cluster facts of a bundle: a volume has room for it and for a newer version.

    Raises DeployError for ranks that do not fill nodes, or for several workers if each needs several nodes.
    """
    nodes = -(-model.ranks // gpus_per_node)
    if model.ranks % nodes:
        what = f"{model.ranks} ranks do not fill nodes of {gpus_per_node} GPUs"
        raise DeployError(what, "--gpus-per-node", f"use a divisor of {model.ranks}")
    if nodes > 1 and workers > 1:
        what = f"a worker takes {nodes} nodes; {workers} workers cannot be in one group"
        raise DeployError(what, "--instances", "leave it out, and scale `replicas` of the LeaderWorkerSet")
    return DynamoClusterFacts(
        cluster_name(model.name),
        model.name,
        room_gib(model.path),
        workers,
        model.ranks,
        nodes=nodes,
        tensorrt=model.tensorrt,
        tensorrt_version=model.tensorrt_version,
    )


def write_manifests(facts: DynamoClusterFacts, folder: Path) -> list[Path]:
    """Write manifests and the Dockerfile of their image; return the files.

    Raises DeployError if they cannot be written.
    """
    return write_files(manifests(facts), folder)


def manifests(facts: DynamoClusterFacts) -> dict[str, str]:
    """Return the files' texts by name."""
    pods = {"deployment.yaml": to_yaml(_deployment(facts))}
    if facts.nodes > 1:
        pods = {"leaderworkerset.yaml": to_yaml(_group(facts), _GROUP_NOTE)}
    return {
        **pods,
        "service.yaml": to_yaml(service(facts.name, {"http": _PORT})),
        "hpa.yaml": to_yaml(_autoscaler(facts), _SCALE_NOTE),
        "persistentvolumeclaim.yaml": to_yaml(claim(facts.name, facts.storage_gib), _CLAIM_NOTE),
        "networkpolicy.yaml": to_yaml(_network_policy(facts), _NETWORK_NOTE),
        "Dockerfile": _dockerfile(facts),
    }


def _image() -> str:
    return f"trtkit-dynamo:{__version__}"


def _dockerfile(facts: DynamoClusterFacts) -> str:
    """Return the Dockerfile of the pods, with the TensorRT that built the plans, since no other version loads them.

    The C compiler is for the launchers of Triton's kernels.
    """
    wheel = f"trtkit-{__version__}-py3-none-any.whl"
    pin = f" {_PACKAGES[facts.tensorrt]}=={facts.tensorrt_version}" if facts.tensorrt_version else ""
    return f"""\
# pip wheel --no-deps -w . FOLDER_OF_TRTKIT && docker build -t {_image()} .
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY {wheel} /tmp/
RUN pip install --no-cache-dir "/tmp/{wheel}[{BACKENDS[facts.tensorrt].extra},dynamo]"{pin} \\
  && pip install --no-cache-dir --no-deps ai-dynamo=={VERSION}
USER 1000:1000
"""


def _deployment(facts: DynamoClusterFacts) -> Manifest:
    volumes = [read_only("bundle", facts.name)]
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": str(_PORT)}
    return deployment(facts.name, facts.replicas, pod(_container(facts), volumes, _GRACE_S), scraped)


def _group(facts: DynamoClusterFacts) -> Manifest:
    """Return groups of pods whose ranks torchrun connects; if a pod fails, its whole group is restarted."""
    volumes = [read_only("bundle", facts.name)]
    first, other = (pod(container, volumes, _GRACE_S) for container in (_container(facts), _member(facts)))
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": str(_PORT)}
    template = {
        "size": facts.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": {"labels": labels(facts.name), "annotations": scraped}, "spec": first},
        "workerTemplate": {"spec": other},
    }
    spec = {"replicas": facts.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}
    return named_object(*facts.target, facts.name, spec)


def _container(facts: DynamoClusterFacts) -> Manifest:
    return {
        **_member(facts),
        "ports": [{"name": "http", "containerPort": _PORT}],
        "startupProbe": {**probe("/health"), "failureThreshold": _START_S // PROBE_S},
        "readinessProbe": probe("/health"),
        "livenessProbe": probe("/live"),
    }


def _member(facts: DynamoClusterFacts) -> Manifest:
    """Return the container that runs a node's ranks: `trtkit serve`, started by torchrun if there are several nodes."""
    serve = ["trtkit", "serve", _BUNDLE, "--name", facts.model, "--replicas", str(facts.workers)]
    serve += ["--host", "0.0.0.0", "--http-port", str(_PORT)]
    nodes = ["--nnodes", "$(LWS_GROUP_SIZE)", "--node-rank", "$(LWS_WORKER_INDEX)"]
    first = ["--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", str(_RENDEZVOUS)]
    launch = ["torchrun", *nodes, "--nproc-per-node", str(facts.gpus), *first, "-m"] if facts.nodes > 1 else []
    return {
        "name": "serve",
        "image": _image(),
        "args": [*launch, *serve],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "TRTKIT_CACHE_DIR", "value": "/tmp/trtkit"},
            {"name": API_KEY, "valueFrom": {"secretKeyRef": {"name": facts.name, "key": "api-key", "optional": True}}},
        ],
        "resources": resources(facts.cpus, facts.memory_gib, facts.gpus),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "bundle", "mountPath": _BUNDLE, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _network_policy(facts: DynamoClusterFacts) -> Manifest:
    """Return the network policy: who reaches the frontend, and that the pods of a group reach each other."""
    policy = network_policy(facts.name, ("http",))
    if facts.nodes > 1:
        selector = {"matchLabels": {_GROUP_LABEL: facts.name}}
        policy["spec"]["podSelector"] = selector
        policy["spec"]["ingress"].append({"from": [{"podSelector": selector}]})
    return policy


def _autoscaler(facts: DynamoClusterFacts) -> Manifest:
    scaled = autoscaler(facts.name, facts.replicas, facts.max_replicas, QUEUE_METRIC, facts.queued)
    version, kind = facts.target
    scaled["spec"]["scaleTargetRef"] = {"apiVersion": version, "kind": kind, "name": facts.name}
    return scaled
