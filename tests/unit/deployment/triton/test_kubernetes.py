from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from trtkit.deployment.kubernetes_objects import cluster_name
from trtkit.deployment.triton.compatibility import find_release
from trtkit.deployment.triton.elsewhere import (
    QUEUE_METRIC,
    ContainerFacts,
    TritonClusterFacts,
    cluster_facts,
    manifests,
    write_manifests,
)
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {
    "deployment.yaml": "Deployment",
    "service.yaml": "Service",
    "hpa.yaml": "HorizontalPodAutoscaler",
    "persistentvolumeclaim.yaml": "PersistentVolumeClaim",
    "networkpolicy.yaml": "NetworkPolicy",
}


def facts(*, needs_trtkit: bool = True, gpus: int = 1) -> TritonClusterFacts:
    return TritonClusterFacts("resnet50", ContainerFacts(find_release("26.07"), needs_trtkit, gpus, shm_mib=512))


def read(name: str, of: TritonClusterFacts | None = None) -> Any:
    return yaml.safe_load(manifests(of or facts())[name])


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("name", KINDS)
def test_manifests_are_what_kubernetes_schemas_allow(name: str, version: str) -> None:
    data = read(name)
    assert data["kind"] == KINDS[name]
    kubernetes_validate.validate(data, version, strict=True)


def test_schemas_would_notice_a_wrong_field() -> None:
    data = read("deployment.yaml")
    data["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["periodSeconds"] = "often"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(data, "1.33", strict=True)


def test_the_pod_is_no_root_writes_nowhere_and_asks_kubernetes_nothing() -> None:
    pod = read("deployment.yaml")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    container = pod["containers"][0]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"shm", "tmp"}
    assert "--model-control-mode=none" in container["args"]


def test_probes_ask_what_triton_answers() -> None:
    container = read("deployment.yaml", facts(needs_trtkit=False))["spec"]["template"]["spec"]["containers"][0]
    paths = {kind: container[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {
        "startupProbe": "/v2/health/ready",
        "readinessProbe": "/v2/health/ready",
        "livenessProbe": "/v2/health/live",
    }


def test_names_and_labels_of_all_objects_meet() -> None:
    deployment, service, scaler = read("deployment.yaml"), read("service.yaml"), read("hpa.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert read("networkpolicy.yaml")["spec"]["podSelector"]["matchLabels"] == labels
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["persistentVolumeClaim"]["claimName"] == read("persistentvolumeclaim.yaml")["metadata"]["name"]
    named = {port["name"] for port in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == named


def test_the_autoscaler_says_what_makes_its_metric() -> None:
    text = manifests(facts())["hpa.yaml"]
    assert text.startswith("# Needs prometheus-adapter")
    rule = "\n".join(line.removeprefix("# ") for line in text.splitlines()[1:] if line.startswith("# "))
    custom = yaml.safe_load(rule)["rules"]["custom"][0]
    metric = read("hpa.yaml")["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert custom["name"]["as"] == metric == QUEUE_METRIC
    assert "nv_inference_queue_duration_us" in custom["metricsQuery"]


def test_without_gpus_none_is_asked_for() -> None:
    resources = read("deployment.yaml", facts(gpus=0))["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert "nvidia.com/gpu" not in resources["limits"]


def test_the_image_is_nvidias_own_where_nothing_needs_trtkit() -> None:
    image = read("deployment.yaml", facts(needs_trtkit=False))["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "nvcr.io/nvidia/tritonserver:26.07-py3"


@pytest.mark.parametrize(
    ("model", "name"),
    [("EfficientNet_Lite0", "efficientnet-lite0"), ("7b.chat", "m-7b-chat"), ("a" * 80, "a" * 63)],
)
def test_names_become_clusters_names(model: str, name: str) -> None:
    assert cluster_name(model) == name


def test_the_volume_has_room_for_a_second_version(tmp_path: Path) -> None:
    (tmp_path / "tiny" / "1").mkdir(parents=True)
    with (tmp_path / "tiny" / "1" / "model.plan").open("wb") as file:
        file.truncate(3 * 2**30)  # a hole: takes no space
    found = cluster_facts("Tiny", tmp_path, facts().container)
    assert (found.name, found.storage_gib) == ("tiny", 6)
    assert read("persistentvolumeclaim.yaml", found)["spec"]["resources"]["requests"]["storage"] == "6Gi"


def test_manifests_are_written(tmp_path: Path) -> None:
    files = write_manifests(facts(), tmp_path / "k8s")
    assert sorted(file.name for file in files) == sorted(KINDS)
    assert all(file.is_file() for file in files)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeployError, match="cannot write the manifests: not a directory"):
        write_manifests(facts(), tmp_path / "file" / "k8s")


def test_python_models_are_alive_as_long_as_their_processes_are() -> None:
    container = read("deployment.yaml")["spec"]["template"]["spec"]["containers"][0]
    command = ["python3", "-P", "-m", "trtkit.deployment.triton.health", "8000"]
    assert container["livenessProbe"]["exec"] == {"command": command}
    assert "httpGet" not in container["livenessProbe"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
