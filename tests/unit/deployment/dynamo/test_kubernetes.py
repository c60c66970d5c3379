"""Manifests of `trtkit deploy --to dynamo`: valid by Kubernetes' schemas, without root, and in the cluster only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from trtkit.deployment.dynamo.kubernetes import ClusterFacts, manifests, write_manifests

if TYPE_CHECKING:
    from pathlib import Path

FACTS = ClusterFacts("my-llama", "My_Llama", storage_gib=3, workers=2)
FILES = [name for name in manifests(FACTS) if name.endswith(".yaml")]


def read(name: str) -> Any:
    return yaml.safe_load(manifests(FACTS)[name])


@pytest.mark.parametrize("name", FILES)
def test_manifests_are_what_kubernetes_schemas_allow(name: str) -> None:
    kubernetes_validate.validate(read(name), "1.33", strict=True)


def test_a_pod_serves_the_bundle_with_a_gpu_for_each_worker_and_no_root() -> None:
    pod = read("deployment.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][:6] == ["trtkit", "serve", "/bundle", "--name", "My_Llama", "--replicas"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(container["args"][6]) == 2
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "USER 1000" in manifests(FACTS)["Dockerfile"]


def test_requests_come_from_the_namespace_only() -> None:
    assert read("service.yaml")["spec"]["type"] == "ClusterIP"
    (rule,) = read("networkpolicy.yaml")["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {}}]


def test_files_are_written(tmp_path: Path) -> None:
    written = write_manifests(FACTS, tmp_path / "k8s")
    assert {path.name for path in written} == {*FILES, "Dockerfile"}
    assert all(path.is_file() for path in written)
