"""Objects of Kubernetes, whichever server they run: names, labels, pods without root, and their YAML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from trtkit.errors import DeployError
from trtkit.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Manifest = dict[str, Any]
_USER = 1000  # `triton-server` in NVIDIA's container


def cluster_name(model: str) -> str:
    """Return a model's name as Kubernetes writes names: 63 lower-case letters, digits and dashes at most."""
    name = re.sub(r"[^a-z0-9-]+", "-", model.lower()).strip("-")[:63].strip("-")
    return name if name[:1].isalpha() else f"m-{name}"[:63]


def named_object(version: str, kind: str, name: str, spec: Manifest) -> Manifest:
    """Return an object with its labels."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels(name)}, "spec": spec}


def labels(name: str) -> dict[str, str]:
    """Return what selects the pods of a name."""
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "trtkit"}


def deployment(name: str, replicas: int, pod: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """Return a Deployment that replaces pods one by one."""
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels(name)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": labels(name), "annotations": dict(annotations)}, "spec": pod},
    }
    return named_object("apps/v1", "Deployment", name, spec)


def pod_security() -> Manifest:
    """Return a pod's security: nobody is root."""
    user = {"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER}
    return {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}}


def container_security() -> Manifest:
    """Return a container's security: no more rights than it has, and nothing to write on but volumes."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def resources(cpus: int, memory_gib: int, gpus: int) -> Manifest:
    """Return what a container needs, and at most gets."""
    devices, memory = {"nvidia.com/gpu": gpus} if gpus else {}, f"{memory_gib}Gi"
    return {"requests": {"cpu": cpus, "memory": memory, **devices}, "limits": {"memory": memory, **devices}}


def claim(name: str, storage_gib: int) -> Manifest:
    """Return the claim of a volume that many nodes read."""
    storage = {"requests": {"storage": f"{storage_gib}Gi"}}
    return named_object("v1", "PersistentVolumeClaim", name, {"accessModes": ["ReadWriteMany"], "resources": storage})


def service(name: str, ports: Mapping[str, int]) -> Manifest:
    """Return a Service for the cluster only, by the names of the pods' ports."""
    listed = [{"name": each, "port": port, "targetPort": each} for each, port in ports.items()]
    return named_object("v1", "Service", name, {"type": "ClusterIP", "selector": labels(name), "ports": listed})


def write_files(texts: Mapping[str, str], folder: Path) -> list[Path]:
    """Write manifests; return the files. Raises DeployError where the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            replace_file(folder / name, text.encode())
    except OSError as error:
        what = f"cannot write the manifests: {(error.strerror or str(error)).lower()}"
        raise DeployError(what, str(folder), "choose a writable `--kubernetes`") from None
    return [folder / name for name in texts]


class _Plain(yaml.SafeDumper):
    """Writes what stands twice twice, without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True for everything."""
        del data
        return True


def to_yaml(data: Manifest, note: str = "") -> str:
    """Return an object as YAML, `note` above it as a comment."""
    comment = "".join(f"# {line}\n" for line in note.splitlines())
    return comment + yaml.dump(data, Dumper=_Plain, sort_keys=False)
