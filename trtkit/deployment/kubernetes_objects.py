"""Kubernetes objects for every server: names, labels, non-root pods, and their YAML."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trtkit.errors import DeployError
from trtkit.files import replace_file

Manifest = dict[str, Any]
PROBE_S = 5
_USER = 1000  # `triton-server` in NVIDIA's container


def cluster_name(model: str) -> str:
    """Return a model's name as a Kubernetes name: at most 63 lower-case letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9-]+", "-", model.lower()).strip("-")[:63].strip("-")
    return name if name[:1].isalpha() else f"m-{name}"[:63]


def named_object(version: str, kind: str, name: str, spec: Manifest) -> Manifest:
    """Return an object with its labels."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels(name)}, "spec": spec}


def labels(name: str) -> dict[str, str]:
    """Return the labels that select the pods of a name."""
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "trtkit"}


def deployment(name: str, replicas: int, pod: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """Return a Deployment that replaces pods one at a time."""
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels(name)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": labels(name), "annotations": dict(annotations)}, "spec": pod},
    }
    return named_object("apps/v1", "Deployment", name, spec)


def pod_security() -> Manifest:
    """Return a pod's security context: no root."""
    user = {"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER}
    return {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}}


def container_security() -> Manifest:
    """Return a container's security context: no privilege escalation, and a root file system that is read-only."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def pod(container: Manifest, volumes: list[Manifest], grace_s: int) -> Manifest:
    """Return a pod of one non-root container that may write to /tmp and has no access to the Kubernetes API.

    grace_s: time that its requests get to finish.
    """
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_s,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [*volumes, {"name": "tmp", "emptyDir": {}}],
    }


def read_only(volume: str, claim_name: str) -> Manifest:
    """Return a pod's read-only volume of a claim."""
    return {"name": volume, "persistentVolumeClaim": {"claimName": claim_name, "readOnly": True}}


def probe(path: str) -> Manifest:
    """Return a probe of the port `http`, every PROBE_S seconds."""
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": PROBE_S, "timeoutSeconds": 5}


def resources(cpus: int, memory_gib: int, gpus: int) -> Manifest:
    """Return a container's resource requests; memory and GPUs are also its limits."""
    devices, memory = {"nvidia.com/gpu": gpus} if gpus else {}, f"{memory_gib}Gi"
    return {"requests": {"cpu": cpus, "memory": memory, **devices}, "limits": {"memory": memory, **devices}}


def autoscaler(name: str, replicas: int, max_replicas: int, metric: str, average: int) -> Manifest:
    """Return an autoscaler that keeps a pod metric at `average`. replicas: the minimum."""
    target = {"type": "AverageValue", "averageValue": str(average)}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": replicas,
        "maxReplicas": max(replicas, max_replicas),
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": metric}, "target": target}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
    }
    return named_object("autoscaling/v2", "HorizontalPodAutoscaler", name, spec)


def network_policy(name: str, own_ports: Sequence[str], everybody: Sequence[str] = ()) -> Manifest:
    """Return a network policy by port name.

    The namespace's pods reach `own_ports`, all others those for `everybody`.
    """
    ports = [[{"port": port, "protocol": "TCP"} for port in of_them] for of_them in (own_ports, everybody)]
    ingress: list[Manifest] = [{"from": [{"podSelector": {}}], "ports": ports[0]}]
    ingress += [{"ports": ports[1]}] if everybody else []
    spec = {"podSelector": {"matchLabels": labels(name)}, "policyTypes": ["Ingress"], "ingress": ingress}
    return named_object("networking.k8s.io/v1", "NetworkPolicy", name, spec)


def room_gib(folder: Path) -> int:
    """Return the GiB of a volume for a folder and a newer version of the same size."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return max(1, math.ceil(2 * size / 2**30))


def claim(name: str, storage_gib: int) -> Manifest:
    """Return the claim of a volume that many nodes can read."""
    storage = {"requests": {"storage": f"{storage_gib}Gi"}}
    return named_object("v1", "PersistentVolumeClaim", name, {"accessModes": ["ReadWriteMany"], "resources": storage})


def service(name: str, ports: Mapping[str, int]) -> Manifest:
    """Return a cluster-internal Service for the named ports of the pods."""
    listed = [{"name": port_name, "port": port, "targetPort": port_name} for port_name, port in ports.items()]
    return named_object("v1", "Service", name, {"type": "ClusterIP", "selector": labels(name), "ports": listed})


def write_files(texts: Mapping[str, str], folder: Path) -> list[Path]:
    """Write manifests; return the files. Raises DeployError if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            replace_file(folder / name, text.encode())
    except OSError as error:
        what = f"cannot write the manifests: {(error.strerror or str(error)).lower()}"
        raise DeployError(what, str(folder), "choose a writable `--kubernetes`") from None
    return [folder / name for name in texts]


class _Plain(yaml.SafeDumper):
    """Writes repeated values in full, without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def to_yaml(data: Manifest, note: str = "") -> str:
    """Return an object as YAML, with `note` as a leading comment."""
    comment = "".join(f"# {line}\n" for line in note.splitlines())
    return comment + yaml.dump(data, Dumper=_Plain, sort_keys=False)
