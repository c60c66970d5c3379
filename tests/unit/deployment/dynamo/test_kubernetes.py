"""Manifests of `trtkit deploy --to dynamo`: valid by Kubernetes' schemas, without root, and in the cluster only."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from trtkit.deployment.dynamo.kubernetes import DynamoClusterFacts, cluster_facts, manifests, write_manifests
from trtkit.deployment.dynamo.model_folder import ServableBundle
from trtkit.errors import DeployError
from trtkit.version import __version__

FACTS = DynamoClusterFacts("my-llama", "My_Llama", storage_gib=3, workers=2)
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


GROUP = DynamoClusterFacts("my-llama", "My_Llama", storage_gib=300, ranks=16, nodes=2)
"""A model on two nodes of eight GPUs."""
# The fields of a LeaderWorkerSet that are used, by its definition (kubernetes-sigs/lws, v1).
GROUP_SCHEMA = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "spec": {
            "additionalProperties": False,
            "properties": {
                "replicas": {"type": "integer"},
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "leaderWorkerTemplate": {
                    "additionalProperties": False,
                    "required": ["workerTemplate"],
                    "properties": {
                        "size": {"type": "integer"},
                        "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
                        "leaderTemplate": {"type": "object"},
                        "workerTemplate": {"type": "object"},
                    },
                },
            },
        },
    },
}


def test_a_model_of_several_nodes_is_served_by_a_group_of_pods() -> None:
    files = {name: yaml.safe_load(text) for name, text in manifests(GROUP).items() if name.endswith(".yaml")}
    group = files.pop("leaderworkerset.yaml")
    jsonschema.validate(group, GROUP_SCHEMA)
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    for each in ("leaderTemplate", "workerTemplate"):
        spec = template[each]["spec"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
        kubernetes_validate.validate(pod, "1.33", strict=True)
        (container,) = spec["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
        assert container["args"][0] == "torchrun"
        assert container["args"][container["args"].index("--nproc-per-node") + 1] == "8"
        assert spec["securityContext"]["runAsNonRoot"]
    assert "readinessProbe" not in template["workerTemplate"]["spec"]["containers"][0]
    assert "deployment.yaml" not in files
    for manifest in files.values():
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    assert files["hpa.yaml"]["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    assert files["service.yaml"]["spec"]["selector"] == template["leaderTemplate"]["metadata"]["labels"]
    within = files["networkpolicy.yaml"]["spec"]["ingress"][1]["from"][0]["podSelector"]["matchLabels"]
    assert within == {"leaderworkerset.sigs.k8s.io/name": "my-llama"}


def test_ranks_of_one_node_are_one_pods_gpus(tmp_path: Path) -> None:
    facts = cluster_facts(ServableBundle(tmp_path, "llama", has_chat=True, takes_images=False, ranks=4), workers=2)
    assert (facts.nodes, facts.gpus) == (1, 8)


@pytest.mark.parametrize(
    ("ranks", "workers", "what"),
    [
        (11, 1, "11 ranks do not fill nodes of 5 GPUs"),
        (10, 2, "a worker takes 2 nodes; 2 workers cannot be in one group"),
    ],
)
def test_what_nodes_cannot_hold_is_refused(ranks: int, workers: int, what: str, tmp_path: Path) -> None:
    model = ServableBundle(tmp_path, "llama", has_chat=True, takes_images=False, ranks=ranks)
    with pytest.raises(DeployError) as refused:
        cluster_facts(model, workers, gpus_per_node=5)
    assert refused.value.what == what


def test_files_are_written(tmp_path: Path) -> None:
    written = write_manifests(FACTS, tmp_path / "k8s")
    assert {path.name for path in written} == {*FILES, "Dockerfile"}
    assert all(path.is_file() for path in written)


def test_the_image_has_pinned_sources_and_a_compiler_for_kernels() -> None:
    """Triton compiles a launcher in C for each kernel when it first runs."""
    text = manifests(FACTS)["Dockerfile"]
    (base,) = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+-slim", base)
    assert {"gcc", "libc6-dev"} <= set(text.split())
    assert all("==" in word for word in re.findall(r"--no-deps (\S+)$", text, re.MULTILINE))
    assert text.rstrip().splitlines()[-1].startswith("USER ")


@pytest.mark.parametrize(
    ("library", "version", "extra", "package"),
    [
        ("tensorrt_rtx", "1.7.1.116", "rtx", "tensorrt-rtx-cu13"),
        ("tensorrt", "11.4.0.106", "tensorrt", "tensorrt-cu13"),
    ],
)
def test_the_image_has_the_tensorrt_that_built_the_plans(library: str, version: str, extra: str, package: str) -> None:
    """Another version refuses them, and so does the other library."""
    model = ServableBundle(
        Path(__file__).parent, "llama", has_chat=True, takes_images=False, tensorrt=library, tensorrt_version=version
    )
    text = manifests(cluster_facts(model))["Dockerfile"]
    assert f'"/tmp/trtkit-{__version__}-py3-none-any.whl[{extra},dynamo]" {package}=={version} ' in text
    assert package in " ".join(metadata.requires("trtkit") or [])
